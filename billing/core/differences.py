"""What a reconciliation can find: each kind says which two figures were not the same."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from uuid import UUID


class Kind(enum.StrEnum):
    """Kinds of differences, in the order in which they are looked for."""

    UNSETTLED = "unsettled"  # a session that ended or was suspended, and nothing was settled
    LINE_MISSING = "line_missing"  # a settlement without its line in the ledger
    LINE_DIFFERS = "line_differs"  # the ledger's line against its settlement
    AMOUNT_WRONG = "amount_wrong"  # a settlement's amount against its tokens and frozen prices
    CHAIN_BROKEN = "chain_broken"  # a settlement does not go on where the one before it ended
    USAGE_DIFFERS = "usage_differs"  # the usage record against the sum of its settlements
    SESSION_MISSING = "session_missing"  # a line of a session that there is not
    LOG_COUNT = "log_count"  # tokens counted in the log against those noted
    LOG_DIGEST = "log_digest"  # ids and text of the log against the digest over them
    DELIVERED_DIFFERS = (
        "delivered_differs"  # delivered as settled against the evidence, and the log
    )
    BILLED_DIFFERS = "billed_differs"  # billed against what the policy makes of the evidence
    WASTE_DIFFERS = "waste_differs"  # delivered + waste against generated
    CREDITS_EXCEED = "credits_exceed"  # what was given back of a charge against the charge
    REOPENED = "reopened"  # a period that is open against what its close has left
    TOTAL_DIFFERS = "total_differs"  # a closed period's frozen total against its lines
    ENGINE_USAGE = "engine_usage"  # what we counted of an attempt against what its engine says


@dataclass(frozen=True, slots=True)
class Difference:
    """Two figures that should be the same: what was ``found``, and what was ``expected`` for it."""

    kind: Kind
    session_id: UUID | None
    subject: str
    found: str
    expected: str

    def __str__(self) -> str:
        session = "" if self.session_id is None else f" session {self.session_id}"
        return f"{self.kind}:{session} {self.subject}: {self.found} instead of {self.expected}"

    def as_dict(self) -> dict[str, str | None]:
        """For JSON."""
        return {
            "kind": str(self.kind),
            "session_id": None if self.session_id is None else str(self.session_id),
            "subject": self.subject,
            "found": self.found,
            "expected": self.expected,
        }
