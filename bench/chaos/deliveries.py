"""Tokens: generated, delivered, billed, wasted. Pure sums over readers and their sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.chaos.evidence import SessionEvidence
from bench.chaos.records import Mode, StreamRecord

GROUPS = {
    "acking": "acking readers",
    "resuming": "resuming readers",
    "plain": "plain clients",
    "left": "readers who left for good",
}


@dataclass(slots=True, kw_only=True)
class Billed:
    """What the ledger says of one kind of readers, against what they really got."""

    streams: int = 0
    """With a session that was settled."""
    equal: int = 0
    above: int = 0
    """Streams billed for more than their reader got."""
    below: int = 0
    most_above: int = 0
    """Tokens, of one stream."""
    most_below: int = 0
    got: int = 0
    billed: int = 0
    differences: Counter[int] = field(default_factory=Counter)
    """Streams by billed − got."""

    def take(self, record: StreamRecord, billed: int) -> None:
        difference = billed - record.tokens
        self.streams += 1
        self.got += record.tokens
        self.billed += billed
        self.equal += difference == 0
        self.above += difference > 0
        self.below += difference < 0
        self.most_above = max(self.most_above, difference)
        self.most_below = max(self.most_below, -difference)
        self.differences[difference] += 1

    @property
    def share_equal(self) -> float | None:
        return self.equal / self.streams if self.streams else None


@dataclass(slots=True, kw_only=True)
class OfMode:
    """Tokens of one mode. ``stayed``: of readers who did not leave on purpose."""

    streams: int = 0
    got: int = 0
    got_stayed: int = 0
    in_whole: int = 0
    """Got by readers whose answer is whole."""


class Deliveries:
    """Takes every stream once, then tells."""

    def __init__(self) -> None:
        self.billing = {group: Billed() for group in GROUPS}
        self.modes: dict[Mode, OfMode] = {}
        self.generated = 0
        """Read from engines for all sessions of known readers."""
        self.generated_stayed = 0
        self.unsettled = 0
        self.missing = 0
        """Streams whose session the database does not have."""
        self.beyond_evidence = 0
        """Sessions billed for more than what sockets, cursors and acknowledgements prove."""
        self.without_line = 0
        """Sessions with a settlement that has no line in the ledger, or one of another amount."""

    def take(self, record: StreamRecord, session: SessionEvidence | None) -> None:
        mode = self.modes.setdefault(record.mode, OfMode())
        mode.streams += 1
        mode.got += record.tokens
        if not record.left:
            mode.got_stayed += record.tokens
        if record.whole:
            mode.in_whole += record.tokens
        if record.mode != "unbroken" or not record.session:
            return
        if session is None:
            self.missing += 1
            return
        self.generated += session.generated
        if not record.left:
            self.generated_stayed += session.generated
        self.without_line += session.lines != session.entries
        if session.billed is None:
            self.unsettled += 1
        else:
            self.billing["left" if record.left else record.reader].take(record, session.billed)
            proven = min(session.sent, max(session.taken, session.cursor, session.acked))
            self.beyond_evidence += session.billed > proven

    def figures(self, evidence: Mapping[str, Any]) -> dict[str, Any]:
        """See ``definitions``: delivery ratio, cost index, waste, billing."""
        gateway = evidence.get("gateway") or {}
        strangers = gateway.get("strangers", {}).get("generated", 0)
        told = [
            engine["generated"] for engine in (evidence.get("engines") or {}).values() if engine
        ]
        engines = sum(told) if told and None not in told else None
        return {
            "billing": {kind: _billed(billed) for kind, billed in self.billing.items()},
            "unsettled": self.unsettled,
            "missing": self.missing,
            "beyond_evidence": self.beyond_evidence,
            "without_line": self.without_line,
            "waste": gateway.get("waste", []),
            "generated": self.generated,
            "strangers": gateway.get("strangers", {"sessions": 0, "generated": 0}),
            "engines_generated": engines,
            "modes": {
                mode: self._of_mode(mode, sums, strangers, engines)
                for mode, sums in self.modes.items()
            },
        }

    def _of_mode(
        self, mode: Mode, sums: OfMode, strangers: int, engines: float | None
    ) -> dict[str, Any]:
        generated = self._generated(mode, strangers, engines)
        stayed = generated
        if mode == "unbroken" and generated is not None:
            stayed = self.generated_stayed + strangers
        return {
            "streams": sums.streams,
            "got": sums.got,
            "in_whole": sums.in_whole,
            "generated": generated,
            "delivery_ratio": _ratio(sums.got_stayed, stayed),
            "whole_ratio": _ratio(sums.in_whole, generated),
            "per_delivered": _ratio(generated, sums.got),
        }

    def _generated(self, mode: Mode, strangers: int, engines: float | None) -> float | None:
        """Tokens that engines made for a mode.

        The gateway counts its own. What the engines counted beyond that was for those who asked them
        directly; of these, streamed answers were read as they came, and the rest is of the others.
        """
        own = self.generated + strangers
        if mode == "unbroken":
            return own or None
        streamed = self.modes["unprotected"].got if "unprotected" in self.modes else 0
        if mode == "unprotected":
            return streamed or None
        if engines is None:
            return None
        # An engine's figures are a moment old when it dies: never less than what was read.
        return max(engines - own - streamed, self.modes["unstreamed"].got) or None


def _billed(billed: Billed) -> dict[str, Any]:
    return {
        "streams": billed.streams,
        "equal": billed.equal,
        "share_equal": billed.share_equal,
        "above": billed.above,
        "below": billed.below,
        "most_above": billed.most_above,
        "most_below": billed.most_below,
        "got": billed.got,
        "billed": billed.billed,
        "differences": dict(sorted(billed.differences.items())),
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
