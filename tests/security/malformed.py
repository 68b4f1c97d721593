"""Requests that are wrong in a seeded, endless number of ways. None of them may begin an answer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

NOBODYS = "0191a8a0-0000-7000-8000-000000000000"
CHAT = {
    # No node serves it: what happens to be valid is refused all the same.
    "model": "nobodys-model",
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hello"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "top_p": 1,
    "max_tokens": 5,
    "stop": ["\n"],
    "seed": 1,
    "logit_bias": {"5": 1},
    "user": "u",
    "metadata": {"a": "b"},
}
ORDER = {
    "user": 7,  # never right
    "models": ["m"],
    "origin": "https://shop.example",
    "expires_in": 900,
    "preset": {"system": "Be kind.", "temperature": 1, "max_tokens": 5},
    "limits": {"requests_per_minute": 5},
    "level": "standard",
    "variant": "a",
}
BODIES: dict[str, Any] = {
    "/v1/chat/completions": CHAT,
    "/v1/sessions": CHAT,
    "/v1/embed-tokens": ORDER,
    f"/v1/sessions/{NOBODYS}/ack": {"seq": 1},
    f"/v1/sessions/{NOBODYS}/report": {"first_paint_ms": 1, "reconnects": 2, "transport": "sse"},
    f"/v1/sessions/{NOBODYS}/stop": {},
}
FRAMES: list[dict[str, Any]] = [
    {"type": "start", "request": CHAT, "ref": 1},
    {"type": "resume", "session": NOBODYS, "seq": 0, "user": "u"},
    {"type": "ack", "session": NOBODYS, "seq": 3},
    {"type": "stop", "session": NOBODYS, "ref": {"a": 1}},
    {"type": "auth", "token": "ub-embed-x"},
    {"type": "wish", "heartbeat": 3, "coalesce": 100},
]

QUERY = ("last_id", "wait", "heartbeat", "coalesce", "quality", "user", "x" * 50)
HEADERS = (
    "Last-Event-ID", "X-Unbroken-Heartbeat", "X-Unbroken-Coalesce", "X-Unbroken-Level",
    "X-Unbroken-Variant", "X-Unbroken-Rehearse", "X-Unbroken-User", "Accept", "traceparent",
    "Content-Type", "X-Unbroken-Events",
)  # fmt: skip
WORDS = (
    "", "0", "-1", "+1", "1e3", "1e999", "nan", "inf", "-inf", "0x10", "1_000", "٣", "²", "9" * 18,
    "9" * 5000, "true", "null", "[]", "{}", "a,b", "kill@1", "kill@" + "9" * 5000, "kill@-1,,", "%00",
    "é", "\x7f", "realtime", "application/json", "text/event-stream;q=x", "'", "*", ";", "\ud7ff",
)  # fmt: skip

ODD: list[Callable[[random.Random], Any]] = [
    lambda r: None,
    lambda r: r.choice([True, False]),
    lambda r: r.choice([-1, 0, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 1e308, -0.0, 0.1]),
    lambda r: r.choice(
        ["", "\x00", "a\x00b", "\u202e", "\ud7ff", "🙂", "{}", "null", "'; --", "%s%n"]
    ),
    lambda r: "x" * r.choice([1, 129, 201, 5000]),
    lambda r: [],
    lambda r: {},
    lambda r: [None, {}, [[]]],
    lambda r: {"type": "start", "__proto__": {"a": 1}, "": ""},
    lambda r: [0] * r.choice([5, 2000]),
    lambda r: {str(number): number for number in range(r.choice([2, 1500]))},
    lambda r: nested(r.choice([5, 300])),
]


def nested(depth: int) -> Any:
    value: Any = 1
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


def bodies(seed: int) -> Iterator[tuple[str, bytes]]:
    """Paths to POST to, and what."""
    chance = random.Random(seed)
    paths = list(BODIES)
    while True:
        path = chance.choice(paths)
        yield path, spoiled(chance, BODIES[path])


def frames(seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    while True:
        yield spoiled(chance, chance.choice(FRAMES))


def spoiled(chance: random.Random, good: Any) -> bytes:
    kind = chance.random()
    if kind < 0.6:
        return json.dumps(mutated(chance, good)).encode()
    text = json.dumps(good, ensure_ascii=False).encode()
    if kind < 0.9:
        return scrambled(chance, text)
    return chance.choice(
        [
            b"", b" ", b"null", b"[]", b"7", b'"text"', b"{", b"}", b"NaN", b"{}" * 50, b"\xff\xfe{}",
            b"[" * 5000, b'{"a":' * 2000, b'{"model": "\\ud800"}', b'{"model": NaN}', b"\x00" * 100,
            b'{"messages": 1e999}', b"model=x&messages=y", b"<xml/>", text + text, b"\xef\xbb\xbf" + text,
            chance.randbytes(chance.randrange(1, 300)),
        ]
    )  # fmt: skip


def mutated(chance: random.Random, value: Any) -> Any:
    """A copy with one to three things wrong."""
    copy = json.loads(json.dumps(value))
    for _ in range(chance.randrange(1, 4)):
        places = list(_places(copy))
        if not places:
            break
        container, key = chance.choice(places)
        what = chance.random()
        if what < 0.15 and isinstance(container, dict):
            container.pop(key, None)
        elif what < 0.3 and isinstance(container, dict):
            container[
                chance.choice(["modle", "", "a" * 300, "\x00", "__class__", "typ\u202ee"])
            ] = 1
        else:
            container[key] = chance.choice(ODD)(chance)
    return copy


def scrambled(chance: random.Random, text: bytes) -> bytes:
    """Bytes changed, lost, doubled or cut off."""
    result = bytearray(text)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(result) or 1)
        match chance.randrange(4):
            case 0:
                result[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del result[at : at + chance.randrange(1, 9)]
            case 2:
                result[at:at] = result[at : at + chance.randrange(1, 30)]
            case 3:
                del result[at:]
    # Whatever is left of it, it begins nothing.
    return bytes(result).replace(b"sim-model", b"x")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items: Any = ()
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, inner in items:
        yield value, key
        yield from _places(inner)
