"""The course of a session: what is stored of it, and what is found in it.

The shapes that ``core.story`` and its parts share. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from streaming.core.outcome import Outcome

NOTICED_MS = 300.0
"""A gap that exceeds the usual pace by more than this is seen by whoever reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One attempt, as ``streaming.models.Attempt`` has it. Times in milliseconds where named so.

    ``last_token_at``: when the last of its tokens was in the log, as the log itself tells; what its
    gateway could not write down before it died (``first_seq``, ``last_seq``) is filled in from there.
    """

    number: int
    kind: str
    node: str
    started_at: datetime
    first_token_at: datetime | None = None
    last_token_at: datetime | None = None
    ended_at: datetime | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    end_reason: str = ""
    end_detail: str = ""
    cause: str = ""
    grade: str = ""
    seam_note: str = ""
    detection_ms: float | None = None
    recovery_ms: float | None = None
    discarded: int = 0
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_productive(self) -> bool:
        """Whether the log has tokens of it."""
        return self.last_seq is not None

    @property
    def spoke_at(self) -> datetime:
        """When its first token came; its beginning, where nobody has noted that."""
        return self.first_token_at or self.started_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One line of the time line (``SessionEvent``)."""

    at: datetime
    kind: str
    seq: int
    data: Mapping[str, Any] = field(default_factory=dict)

    def told(self, name: str) -> str:
        """One of its data, as text; empty when it does not have it."""
        value = self.data.get(name)
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known of one session. ``charged``: billed tokens; None: not settled yet."""

    state: str
    finish_reason: str
    error_code: str
    cause: str
    created_at: datetime
    first_token_at: datetime | None
    ended_at: datetime | None
    tokens: int
    delivered: int
    tries: tuple[Try, ...] = ()
    happenings: tuple[Happening, ...] = ()
    charged: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """One abnormal end. ``side``: engine, gateway or reader. ``seq``: the last token before it.

    ``until``: when the next token was there, or the reader back; None: never.
    ``beyond_ms``: the time without a token, less the session's usual pace; None: it never went on,
    or nobody was there to notice. ``node``: the engine's, empty for a gateway; ``gateway``: the id
    of the process that died, where that is known.
    """

    at: datetime
    side: str
    seq: int
    node: str
    cause: str
    until: datetime | None = None
    next_node: str = ""
    grade: str = ""
    beyond_ms: float | None = None
    gateway: str = ""

    @property
    def noticed(self) -> bool:
        return self.until is None or (self.beyond_ms or 0.0) > NOTICED_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A time without any reader.

    ``how``: closed, reset, ended (it wanted no more), timed_out, stuck, sent_away, ours (the gateway
    cut it), told_error (the answer could not go on for now); gateway_gone: the process died that it was
    connected to. ``back_at``: None: nobody came back.
    """

    left_at: datetime
    back_at: datetime | None
    how: str
    seq: int

    @property
    def is_clean(self) -> bool:
        """Its reader hung up."""
        return self.how not in (
            "timed_out", "stuck", "sent_away", "ours", "told_error", "gateway_gone",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """``sentence``: what happened, for somebody who does not know what a KV-cache is."""

    outcome: Outcome | None
    interruptions: tuple[Interruption, ...]
    absences: tuple[Absence, ...]
    sentence: str

    @property
    def main(self) -> Interruption | None:
        """The one that decided: the one that was never got over, else the longest."""
        open_ones = [one for one in self.interruptions if one.until is None]
        if open_ones:
            return open_ones[-1]
        return max(self.interruptions, key=lambda one: one.beyond_ms or 0.0, default=None)
