"""What is stored as one word, in words that explain themselves: for people who run no engines.

What another version has stored, and this one does not know, is shown as it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from streaming.core.course import Happening
from streaming.core.wording import cause_in_words, lasting

GRADES = {
    "exact": "continued from the very tokens the reader has: nothing lost, doubled or changed",
    "text": "continued from the text the reader has: nothing lost or doubled",
    "regenerated": "asked again from the start and compared with what the reader has; only what was new was sent",
    "refused": "not continued: it could not have been done without changing what the reader has",
}

KINDS = {
    "first": "the first try",
    "failover": "after a failure",
    "hedge": "beside one that had gone silent: the faster goes on",
    "migration": "moved, as its node was being emptied",
    "resumption": "taken up again",
}

ENDS = {
    "": "runs still",
    "finished": "finished the answer",
    "cancelled": "ended with the session",
    "overtaken": "another attempt was faster",
    "rejected": "the engine refused the request itself",
    "refused": "the engine took no connection",
    "connection_reset": "the connection to the engine broke off",
    "closed_early": "the engine’s stream ended in the middle",
    "malformed_event": "the engine sent something that is no answer",
    "engine_error": "the engine reported an error",
    "engine_abort": "the engine gave the request up",
    "bad_status": "the engine answered with an error",
    "engine_busy": "the engine had no room",
    "no_first_token": "the engine never began",
    "stalled": "the engine fell silent",
    "seam_mismatch": "what came was not the same answer",
    "rehearsal": "a test asked it to fail",
    "migrated": "its node was being emptied",
    "gateway_crash": "the gateway process died",
    "runner_lost": "the gateway process had stopped working on it",
    "gateway_shutdown": "the gateway process was shut down",
}

RECLAIMS = {
    "": "nothing to free: the engine itself had ended it",
    "pending": "its memory on the engine is being freed",
    "verified": "its memory on the engine was freed, and this was verified",
    "unverifiable": "whether its memory on the engine was freed could not be seen yet",
    "overdue": "its memory on the engine was not freed in time",
}

OUTCOMES = {
    "recovered": "Interrupted, and recovered",
    "suspended": "Interrupted, can still go on",
    "lost": "Interrupted, the reader did not get the rest",
    "left": "Its reader left",
    "": "Not interrupted",
}

FILTERED = {
    "mask": "replaced something in the answer",
    "stop": "ended the answer",
    "flag": "found something in the answer",
}

STATES = {
    "created": "waits for an engine",
    "streaming": "is being answered now",
    "recovering": "is being recovered now",
    "suspended": "is suspended",
    "completed": "is complete",
    "stopped": "was stopped",
    "cancelled": "was ended, as its reader had left",
    "failed": "has failed",
    "abandoned": "was given up, as nobody came back for it",
}

PROTOCOLS = {
    "openai": "the OpenAI API",
    "sessions": "the sessions API",
    "sse": "server-sent events",
    "longpoll": "long polling",
    "websocket": "a WebSocket",
}

CLIENT_TRANSPORTS = {**PROTOCOLS, "plain": "plain requests"}

DELIVERED_BY = {
    "none": "nothing proves any delivery",
    "socket": "by the reader’s system, as its connection told",
    "cursor": "shown by the reader when it came back",
    "ack": "acknowledged by the reader",
}

LEAVINGS = {
    "closed": "closed its connection",
    "reset": "was cut off: its connection was reset",
    "timed_out": "vanished: its network answered no more",
    "stuck": "took nothing any more",
    "sent_away": "was asked to come back on another connection",
    "ours": "was cut off by the gateway",
    "told_error": "was told that the answer cannot go on for now",
    "ended": "stopped reading",
    "gateway_gone": "lost its connection, as the gateway process died",
}

_TAKEN_OVER = {
    "gateway_crash": "the former one had died",
    "gateway_shutdown": "the former one was shut down",
    "runner_lost": "the former one had stopped working on it",
    "abandoned": "nobody had come back for it",
}


def word(words: Mapping[str, str], stored: Any) -> str:
    """What ``stored`` stands for; what is not known as it is, without underscores."""
    return words.get(stored, str(stored).replace("_", " "))


def milliseconds(value: float | None) -> str:
    """``38 ms``; a dash for None."""
    return "-" if value is None else lasting(value)


def duration(value: timedelta) -> str:
    """``3 min 5 s``"""
    return lasting(value / timedelta(milliseconds=1))


def _seconds(value: Any) -> str:
    return lasting(float(value) * 1000)


def _lower(words: str) -> str:
    return words[:1].lower() + words[1:]


def _on(data: Mapping[str, Any]) -> str:
    return f"on {data['node']}" if data.get("node") else "on another node"


def _ended(what: str) -> Callable[[Happening], str]:
    def told(event: Happening) -> str:
        cause = event.data.get("cause")
        return f"{what}: {_lower(cause_in_words(str(cause)))}." if cause else f"{what}."

    return told


def _suspended(event: Happening) -> str:
    told = _ended("Suspended: its engine was released and what there is of it kept")(event)
    if error := event.data.get("error"):
        told += f" Whoever read it was told {error['code']}."
    return told


def _recovered(event: Happening) -> str:
    data = event.data
    grade = f" ({data['grade']})" if data.get("grade") else ""
    told = f"The answer continued {_on(data)}{grade}"
    if "gap_ms" not in data:
        return f"{told}."
    return f"{told}, {milliseconds(float(data['gap_ms']))} after the failure was noticed."


def _moved(event: Happening) -> str:
    data = event.data
    grade = f" ({data['grade']})" if data.get("grade") else ""
    return f"The answer continued {_on(data)}{grade}."


def _filtered(event: Happening) -> str:
    data = event.data
    times = int(data["count"])
    often = "" if times == 1 else f" {times} times"
    return f"Content rule “{data['rule']}” {FILTERED[data['action']]}{often}."


def _taken_over(event: Happening) -> str:
    data = event.data
    former = f" from process {data['from']}" if data.get("from") else ""
    why = f": {word(_TAKEN_OVER, data['reason'])}" if data.get("reason") else ""
    return f"Gateway process {data['to']} took the session over{former}{why}."


def _reader(data: Mapping[str, Any]) -> str:
    return f"Reader {data['reader']}" if data.get("reader") else "A reader"


def _joined(event: Happening) -> str:
    data = event.data
    by = data.get("protocol") or data.get("transport")
    over = f" over {word(PROTOCOLS, by)}" if by else ""
    cursor = data.get("cursor")
    having = f", and had the answer up to token {cursor}" if cursor else ""
    return f"{_reader(data)} began to read{over}{having}."


def _reported(event: Happening) -> str:
    data = event.data
    parts: list[tuple[str, str, Callable[[Any], str]]] = [
        ("first text after", "first_paint_ms", milliseconds),
        ("largest gap", "largest_gap_ms", milliseconds),
        ("reconnects", "reconnects", str),
        ("round trip", "rtt_ms", milliseconds),
    ]
    told = [f"{label} {form(data[name])}" for label, name, form in parts if name in data]
    if "transport" in data:
        told.append(f"over {word(CLIENT_TRANSPORTS, data['transport'])}")
    return f"The client reported: {', '.join(told)}." if told else "The client sent a report."


_SENTENCES: dict[str, Callable[[Happening], str]] = {
    "created": lambda e: (
        f"Asked for over {word(PROTOCOLS, e.data['protocol'])}."
        if e.data.get("protocol")
        else "Asked for."
    ),
    "recovering": lambda e: (
        f"The attempt {_on(e.data)} failed ({word(ENDS, e.data['cause'])}); another one is sought."
    ),
    "recovered": _recovered,
    "moving": lambda e: f"Node {e.data['node']} is being emptied: the answer moves elsewhere.",
    "moved": _moved,
    "hedged": lambda e: (
        f"Node {e.data['silent']} was silent"
        f"{' for ' + milliseconds(float(e.data['silent_ms'])) if 'silent_ms' in e.data else ''}: tried"
        f" {_on(e.data)} as well."
    ),
    "hedge_won": lambda e: (
        f"Node {e.data['node']} was faster than {e.data['silent']}, and goes on."
    ),
    "hedge_lost": lambda e: (
        f"Node {e.data['silent']} spoke again and goes on; the try {_on(e.data)} was given up."
    ),
    "engine_silent": lambda e: (
        f"Node {e.data['node']} has sent nothing for {_seconds(e.data['seconds'])}."
    ),
    "answer_long": lambda e: (
        f"The answer has taken {_seconds(e.data['seconds'])} so far;"
        f" at {_seconds(e.data['limit'])} it will be ended."
    ),
    "filtered": _filtered,
    "taken_over": _taken_over,
    "reader_joined": _joined,
    "reader_left": lambda e: f"{_reader(e.data)} {word(LEAVINGS, e.data['how'])}.",
    "client_report": _reported,
    "suspended": _suspended,
    "completed": _ended("Complete"),
    "stopped": _ended("Stopped"),
    "cancelled": _ended("Ended"),
    "failed": _ended("Failed"),
    "abandoned": _ended("Given up"),
}

UP_TO_TERMINAL = frozenset({"completed", "stopped", "cancelled", "failed", "abandoned"})
"""Kinds whose ``seq`` is that of the record of the end: the last token is the one before it."""


def sentence(event: Happening) -> str:
    """What happened, in one sentence. Of other kinds, or with other data: what is stored."""
    try:
        return _SENTENCES[event.kind](event)
    except (KeyError, ValueError, TypeError, AttributeError):
        pairs = event.data.items() if isinstance(event.data, Mapping) else ()
        told = ", ".join(f"{name}: {value}" for name, value in pairs)
        return f"{event.kind}: {told}" if told else event.kind


def token_of(event: Happening) -> int:
    """The last token of the answer at that moment; the record of the end is none."""
    return max(event.seq - (event.kind in UP_TO_TERMINAL), 0)
