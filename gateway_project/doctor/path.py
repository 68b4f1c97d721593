"""The way from the public address to the gateways and back, measured with an API key."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import aiohttp

from gateway_project.doctor import answer, pace
from gateway_project.doctor.finding import Finding, failure, left_out, ok, warning
from gateway_project.doctor.gateways import live_count
from gateway_project.doctor.postgres import judge_clock
from gateway_project.doctor.public import ANSWER_SECONDS, Course, Public, follow, session
from streaming.conf import conf

PACE_SECONDS, PACE_INTERVAL = 2.0, 0.1
SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""The silences that are tried, of the patience there is."""
LEAVE_SECONDS = 10.0
ASKS = 60


def limit(public: Public) -> float:
    """Seconds that ``look`` may take."""
    return public.patience + 90.0


def look(public: Public) -> Iterator[Finding]:
    if not public.key:
        yield left_out(
            "stream, cut-offs, resume",
            "give an API key: --key-file FILE, or UNBROKEN_API_KEY in the environment",
        )
        return
    yield from asyncio.run(_all(public))


async def _all(public: Public) -> list[Finding]:
    refused = await _key_is_refused(public)
    if refused is not None:
        return [refused]
    met: Counter[int] = Counter()
    first, sent = await _paced(public)
    found = _judge_first(public, first, sent)
    if first.opened is None:
        return found
    # What only waits goes side by side; what is asked of an engine does not disturb it.
    silent, busy, *others = await asyncio.gather(
        asyncio.gather(*(_silent(public, share * public.patience) for share in SHARES)),
        follow(public, public.patience, min(1.0, public.patience / 5)),
        _body(public),
        _socket(public),
        _disconnect(public, met),
        answer.look(public),
    )
    found += pace.judge_cuts(
        silent, busy, silence=conf().gateway_silence, longest_answer=conf().max_answer_seconds
    )
    for finding in others:
        found += finding
    met.update(one.opened["instance"] for one in (first, busy, *silent) if one.opened)
    found.append(pace.judge_spread(met, await asyncio.to_thread(live_count)))
    return found


async def _key_is_refused(public: Public) -> Finding | None:
    try:
        async with (
            session(public) as client,
            client.get(f"{public.url}/v1/models", headers=public.headers) as response,
        ):
            status, body = response.status, await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as exc:
        return failure(
            "API key",
            f"could not be tried: {type(exc).__name__}: {exc}",
            "See the findings about the address.",
        )
    if status == 200:
        return None
    if status in (401, 403):
        return failure(
            "API key",
            f"HTTP {status}: {_words(body)}",
            "`manage.py create_api_key`; let the proxy pass Authorization on.",
        )
    return failure(
        "API key",
        f"/v1/models is answered with HTTP {status}: {_words(body)}",
        "See the findings about the address.",
    )


async def _paced(public: Public) -> tuple[Course, dict[str, str]]:
    # Who may compress is tempted to: a client of browsers says that it takes everything.
    sent = {
        "last-event-id": "17",
        "idempotency-key": f"doctor-{uuid4().hex[:12]}",
        "x-request-id": f"doctor-{uuid4().hex[:12]}",
        "x-unbroken-heartbeat": "11",
    }
    course = await follow(
        public, PACE_SECONDS, PACE_INTERVAL, {**sent, "accept-encoding": "gzip, br"}
    )
    if course.status == 200 and course.headers.get("content-encoding", "identity") != "identity":
        plain = await follow(public, PACE_SECONDS, PACE_INTERVAL, sent)
        plain.headers = course.headers
        return plain, sent
    return course, sent


def _judge_first(public: Public, first: Course, sent: dict[str, str]) -> list[Finding]:
    if first.opened is None:
        trouble = first.trouble or f"HTTP {first.status}"
        return [
            failure(
                "stream",
                f"server-sent events do not arrive: {trouble}",
                "Pass /v1/ to the gateways unchanged; an older gateway has no /v1/diagnostics/.",
                pace.PROXIES,
            )
        ]
    clock = (
        []
        if first.clock_offset is None
        else [judge_clock("gateway clock", "X-Server-Time's", first.clock_offset)]
    )
    return [
        pace.judge_buffering(first),
        pace.judge_compression(first.headers),
        *pace.judge_response_headers(first.headers),
        pace.judge_request_headers(sent, first.opened["headers"]),
        pace.judge_whom(
            first.opened, is_https=public.url.startswith("https:"), is_local=public.is_local
        ),
        *clock,
    ]


async def _silent(public: Public, seconds: float) -> Course:
    return await follow(public, seconds, max(seconds, 0.05))


async def _body(public: Public) -> list[Finding]:
    """As large a request as the gateway takes, which it refuses for what is in it."""
    most = conf().max_body_bytes
    start = b'{"model":"doctor","messages":"'
    body = start + b"x" * (most - len(start) - 64) + b'"}'
    headers = {**public.headers, "content-type": "application/json"}
    try:
        async with (
            session(public) as client,
            client.post(
                f"{public.url}/v1/chat/completions", data=body, headers=headers,
                timeout=aiohttp.ClientTimeout(total=60),
            ) as response,
        ):  # fmt: skip
            return [judge_body(response.status, await response.read(), most)]
    except (aiohttp.ClientError, OSError, TimeoutError) as exc:
        return [judge_body(0, f"{type(exc).__name__}: {exc}".encode(), most)]


def judge_body(status: int, body: bytes, most: int) -> Finding:
    """``most``: MAX_BODY_BYTES; the gateway answers such a body with 400."""
    if status == 400 and b'"error"' in body:
        return ok("request size", f"bodies of {most / (1 << 20):.1f} MB arrive")
    seen = f"a request of {most / (1 << 20):.1f} MB is answered with " + (
        f"HTTP {status}" if status else _words(body)
    )
    return warning(
        "request size",
        f"{seen}, not by the gateway",
        "nginx: client_max_body_size; as large as MAX_BODY_BYTES.",
        pace.PROXIES,
    )


async def _socket(public: Public) -> list[Finding]:
    """A message there and back over ``/ws/chat/``, with the key in its handshake."""
    began = time.monotonic()
    try:
        async with (
            asyncio.timeout(ANSWER_SECONDS),
            session(public) as client,
            client.ws_connect(f"{public.url}/ws/chat/", headers=public.headers) as socket,
        ):
            await socket.send_str('{"type": "ping"}')
            async for message in socket:
                is_text = message.type is aiohttp.WSMsgType.TEXT
                if is_text and json.loads(message.data)["type"] == "pong":
                    took = f"{(time.monotonic() - began) * 1000:.0f} ms"
                    return [ok("WebSocket messages", f"asked and answered within {took}")]
        trouble = "the connection was closed"
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError) as exc:
        trouble = f"{type(exc).__name__}: {exc}".rstrip(": ")
    return [
        failure(
            "WebSocket messages",
            f"do not pass: {trouble}",
            "Pass the Upgrade and Connection headers of /ws/ on.",
            pace.PROXIES,
        )
    ]


async def _disconnect(public: Public, met: Counter[int]) -> list[Finding]:
    """Leave a stream, and ask its process whether it has noticed."""
    began = time.monotonic()
    course = await follow(public, 30.0, 0.5, only_open=True)
    left_after = time.monotonic() - began
    if course.opened is None:
        return [left_out("disconnect", course.trouble or f"HTTP {course.status}")]
    told: dict[str, Any] = {"state": "unknown", "seconds": None}
    until = time.monotonic() + LEAVE_SECONDS
    async with session(public) as client:
        for _ in range(ASKS):
            said = await _ended(public, client, course.opened["id"])
            if said:
                met[said["instance"]] += 1
                if said["instance"] == course.opened["instance"]:
                    told = said
            if told["state"] == "left" or time.monotonic() > until:
                break
            await asyncio.sleep(0.2)
    return [pace.judge_disconnect(told["state"], told["seconds"], left_after)]


async def _ended(
    public: Public, client: aiohttp.ClientSession, stream: str
) -> dict[str, Any] | None:
    try:
        async with client.get(
            f"{public.url}/v1/diagnostics/ended", params={"id": stream}, headers=public.headers
        ) as response:
            return await response.json() if response.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None


def _words(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:120].decode(errors="replace")
