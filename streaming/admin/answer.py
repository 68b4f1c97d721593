"""The answer as the reader has it, with the seams in it; and what was asked. All of it is content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString

from streaming.admin.plain_text import visible
from streaming.admin.words import milliseconds
from streaming.core.course import Interruption
from streaming.models import Attempt, StreamSession
from streaming.services.sql import rows

MOST_SHOWN = 100_000
"""Characters of the answer on the page. The evidence bundle has them all."""
LEAST_SHOWN = 2_000
"""Of each part: every seam is to be seen."""

# A part is what one attempt has added at a stretch; the record that closes the log is none.
_PARTS = """
SELECT attempt, min(first_seq), max(last_seq), string_agg(text, ''::bytea ORDER BY first_seq)
FROM (SELECT attempt, first_seq, last_seq, text,
        count(*) FILTER (WHERE attempt IS DISTINCT FROM former) OVER (ORDER BY first_seq) AS run
    FROM (SELECT attempt, first_seq, last_seq - (terminal IS NOT NULL)::int AS last_seq, text,
            lag(attempt) OVER (ORDER BY first_seq) AS former
        FROM streaming_tokencheckpoint WHERE session_id = %s AND expires_on = %s) c WHERE last_seq >= first_seq) c
GROUP BY run, attempt ORDER BY 2
"""


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens ``first``..``last`` of one attempt, and their text."""

    attempt: int
    first: int
    last: int
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A part on the page. ``seam``: what is said before it; ``left_out``: how many characters between
    ``text`` and ``rest``."""

    seam: str
    grade: str
    text: SafeString
    left_out: int
    rest: SafeString | str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of what was asked."""

    role: str
    text: SafeString


def parts_of(session: StreamSession) -> list[Part]:
    """The answer as far as it is in the log; one query."""
    return [
        Part(attempt, first, last, bytes(text).decode("utf-8", "replace"))
        for attempt, first, last, text in rows(_PARTS, session.pk, session.expires_on)
    ]


def shown(
    parts: Sequence[Part],
    attempts: Sequence[Attempt],
    interruptions: Sequence[Interruption],
) -> list[Shown]:
    """The parts for the page, with a seam before each but the first."""
    by_number = {attempt.number: attempt for attempt in attempts}
    most = max(MOST_SHOWN // max(len(parts), 1), LEAST_SHOWN)
    page = []
    for n, part in enumerate(parts):
        attempt = by_number.get(part.attempt)
        seam = seam_in_words(part.first, part.attempt, attempt, interruptions) if n else ""
        head, left_out, tail = _shortened(part.text, most)
        page.append(
            Shown(
                seam, attempt.seam_grade if attempt is not None else "", visible(head), left_out,
                visible(tail) if left_out else "",
            )
        )  # fmt: skip
    return page


def seam_in_words(
    first: int, number: int, attempt: Attempt | None, interruptions: Sequence[Interruption]
) -> str:
    """``continued on gpu-1 from token 413, exact, after 38 ms``; ``attempt``: None: not noted."""
    if attempt is None:
        return f"continued by attempt {number} from token {first}"
    words = f"continued on {attempt.node_name} from token {first}"
    if attempt.seam_grade:
        words += f", {attempt.seam_grade}"
    waited = next(
        (
            one.beyond_ms
            for one in interruptions
            if one.seq == first - 1 and one.beyond_ms is not None
        ),
        attempt.recovery_ms,
    )
    return words if waited is None else f"{words}, after {milliseconds(waited)}"


def request_of(session: StreamSession) -> tuple[list[Message], SafeString]:
    """What was asked: its messages, and everything else of it. Of what is no chat request all is
    in the second."""
    body = bytes(session.request)
    try:
        asked = json.loads(body)
        messages = [_message(message) for message in asked.pop("messages")]
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return [], visible(_cut(body.decode("utf-8", "replace")))
    return messages, visible(_cut(json.dumps(asked, indent=2, ensure_ascii=False)))


def _message(message: dict[str, Any]) -> Message:
    text = message["content"]
    if not isinstance(text, str):
        text = json.dumps(text, indent=2, ensure_ascii=False)
    return Message(str(message["role"])[:40], visible(_cut(text)))


def _cut(text: str) -> str:
    head, left_out, tail = _shortened(text, MOST_SHOWN)
    return f"{head}\n… {left_out:,} characters are not shown …\n{tail}" if left_out else text


def _shortened(text: str, most: int) -> tuple[str, int, str]:
    """Its beginning and its end, and how much is left out between them."""
    if len(text) <= most:
        return text, 0, ""
    head, tail = most * 3 // 4, most // 4
    return text[:head], len(text) - head - tail, text[-tail:]
