"""What customers are told of an incident: plain words, and nothing of what is inside.

Whoever sends it reads it first and changes what they like.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from streaming.core.attribution import Blame

_SERVER = "one of the servers that write answers"
_HAPPENED: Mapping[str, str] = {
    Blame.ENGINE_FROZEN: f"{_SERVER} stopped responding",
    Blame.TIMEOUT: f"{_SERVER} stopped responding",
    Blame.ENGINE_OVERLOAD: f"{_SERVER} had more work than it could take",
    Blame.RATE_LIMIT: f"{_SERVER} had more work than it could take",
    Blame.NETWORK_RESET: "a network connection within our service failed",
    Blame.NETWORK_PARTITION: "a network connection within our service failed",
    Blame.GATEWAY_CRASH: "one of the servers that pass answers on failed",
    Blame.GATEWAY_SHUTDOWN: "one of the servers that pass answers on was taken out of service",
}
_OTHERWISE = f"{_SERVER} failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """What an incident was for those who are told of it.

    ``quiet``: answers that went on, and nobody can have noticed; ``paused``: those that went on after
    a pause that could be seen; ``waiting``: those that go on when their readers come back. ``pause_ms``
    is that of most of them (the 95th percentile), None: not known. ``charged`` and ``credited``:
    amounts in words, one for each currency; None: who writes it may not see money.
    ``whose``: "your" answers, or the answers of everybody.
    """

    began: datetime
    ended: datetime
    cause: str
    answers: int
    quiet: int
    paused: int
    waiting: int
    lost: int
    pause_ms: float | None = None
    charged: Sequence[str] | None = None
    credited: Sequence[str] | None = None
    whose: str = ""


def notice(hit: Hit) -> str:
    """The text, in paragraphs."""
    happened = _HAPPENED.get(hit.cause, _OTHERWISE)
    under_way = "1 answer was" if hit.answers == 1 else f"{hit.answers:,} answers were"
    if hit.whose:
        under_way = (
            f"1 of {hit.whose} answers was"
            if hit.answers == 1
            else f"{hit.answers:,} of {hit.whose} answers were"
        )
    paragraphs = [
        f"{_when(hit.began, hit.ended)}, {happened}. {under_way} affected.",
        " ".join(_meaning(hit)),
        " ".join(_money(hit)),
        "We are sorry for the trouble.",
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _when(began: datetime, ended: datetime) -> str:
    began, ended = (at.astimezone(UTC).replace(microsecond=0) for at in (began, ended))
    day = f"{began.day} {began:%B %Y}"
    if began == ended:
        return f"On {day} at {began:%H:%M:%S} UTC"
    if began.date() == ended.date():
        return f"On {day} between {began:%H:%M:%S} and {ended:%H:%M:%S} UTC"
    return (
        f"Between {day}, {began:%H:%M:%S} UTC, and {ended.day} {ended:%B %Y}, {ended:%H:%M:%S} UTC"
    )


def _meaning(hit: Hit) -> list[str]:
    told = []
    if hit.quiet:
        told.append(
            f"{_number(hit.quiet, hit.answers)} went on without a pause that a reader would notice."
        )
    if hit.paused:
        pause = "" if hit.pause_ms is None else f" of up to about {_pause(hit.pause_ms)}"
        told.append(f"{_number(hit.paused, hit.answers)} went on after a pause{pause}.")
    if hit.quiet or hit.paused:
        told.append("Where an answer went on, nothing of it was shown twice or left out.")
    if hit.waiting:
        told.append(
            f"{_number(hit.waiting, hit.answers)} {_form(hit.waiting, 'waits for its reader, and goes', 'wait for their readers, and go')}"
            " on when the reader comes back."
        )
    if hit.lost:
        told.append(
            f"{_number(hit.lost, hit.answers)} {_form(hit.lost, 'was', 'were')} broken off;"
            " readers kept what they had been shown until then."
        )
    return told


def _money(hit: Hit) -> list[str]:
    told = ["Only what reached a reader is charged"]
    if hit.charged:
        told[0] += f": {_list(hit.charged)} for these answers"
    told[0] += "."
    if hit.credited:
        told.append(f"Of that, {_list(hit.credited)} was credited.")
    return told


def _number(count: int, answers: int) -> str:
    return "It" if answers == 1 else f"{count:,} of them"


def _form(count: int, one: str, many: str) -> str:
    return one if count == 1 else many


def _list(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _pause(milliseconds: float) -> str:
    """Rounded up: it is told as the longest."""
    tenths = max(1, math.ceil(milliseconds / 100))
    if tenths < 100:
        return "1 second" if tenths == 10 else f"{tenths / 10:g} seconds"
    seconds = math.ceil(milliseconds / 1000)
    return f"{seconds} seconds" if seconds < 90 else f"{math.ceil(seconds / 60)} minutes"
