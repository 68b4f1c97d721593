"""The hash chain of the audit log: what exactly is hashed, and how a chain is walked.

Fields are length-prefixed, so that nothing can be moved from one into the next, and hashed as the
database gives them back: times in whole microseconds, data as the text that is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from billing.core.money import plain

GENESIS = bytes(32)
"""What the first link follows."""

_REFUSED = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Link:
    """The fields of one audit entry."""

    seq: int
    at: datetime
    action: str
    actor: str
    subject: str
    tenant_id: int | None
    session_id: UUID | None
    data: str

    def hash(self, previous: bytes) -> bytes:
        """SHA-256 over the link before and all fields of this one."""
        digest = hashlib.sha256(b"unbroken audit link 1")
        for field in (
            previous,
            b"%d" % self.seq,
            moment(self.at).encode(),
            self.action.encode(),
            self.actor.encode(),
            self.subject.encode(),
            b"" if self.tenant_id is None else b"%d" % self.tenant_id,
            b"" if self.session_id is None else str(self.session_id).encode(),
            self.data.encode(),
        ):
            digest.update(len(field).to_bytes(8, "big"))
            digest.update(field)
        return digest.digest()


class Walk:
    """Goes along a chain, link by link, and says what is wrong with it. ``seq``: how far it is."""

    def __init__(self) -> None:
        self.seq = 0
        self.hash = GENESIS

    def __repr__(self) -> str:
        return f"<Walk [at {self.seq}: {self.hash.hex()[:12]}…]>"

    def step(self, link: Link, previous: bytes, stored: bytes) -> list[tuple[int, str]]:
        """Take the next link, ``previous`` and ``stored`` (its hash) as the database has them.

        What is wrong, each with the number of the link that is: nothing, as a rule. Goes on from
        what is stored, so that one break is told once.
        """
        before = self.seq
        follows = previous == self.hash
        self.seq, self.hash = link.seq, stored
        if link.hash(previous) != stored:
            wrong = [(link.seq, "was changed: its hash does not fit its columns")]
        else:
            wrong = []
        if link.seq < 1:
            return [(link.seq, "does not belong here: numbers begin with 1")]
        if link.seq != before + 1:
            last = link.seq - 1
            missing = "is missing" if last == before + 1 else f"to {last} are missing"
            return [(before + 1, missing), *wrong]
        if not follows and not wrong:
            # It is whole in itself, so it is the one before that is not what it was.
            wrong = (
                [(before, f"was replaced: entry {link.seq} follows one with another hash")]
                if before
                else [(link.seq, "does not begin the chain: it follows something")]
            )
        return wrong


def moment(at: datetime) -> str:
    """A time as it is hashed and exported: UTC, microseconds.

    Raises ``TypeError`` for a time without a time zone: it has no meaning of its own.
    """
    if at.tzinfo is None:
        raise TypeError("a time without a time zone has no canonical spelling")
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def printable(text: str) -> str:
    """Without what PostgreSQL refuses, NUL and lone surrogates: U+FFFD stands for it."""
    return _REFUSED.sub("\ufffd", text)


def canonical(values: dict[str, Any]) -> str:
    """JSON in one spelling: sorted keys, no spaces; decimals and times as text. No floats.

    Raises ``TypeError`` for what has no single spelling.
    """
    return json.dumps(_spelled(values), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(values: dict[str, Any]) -> str:
    """SHA-256 of ``canonical``, hexadecimal."""
    return hashlib.sha256(canonical(values).encode()).hexdigest()


def signature(key: bytes, seq: int, head: bytes) -> str:
    """HMAC-SHA256 over a head, hexadecimal: only who has the key can have published it."""
    return hmac.new(key, b"unbroken audit head %d %s" % (seq, head), hashlib.sha256).hexdigest()


def _spelled(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case str():
            return printable(value)
        case Decimal() if value.is_finite():
            return plain(value)
        case datetime():
            return moment(value)
        case UUID():
            return str(value)
        case list() | tuple():
            return [_spelled(one) for one in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {printable(key): _spelled(one) for key, one in value.items()}
    raise TypeError(f"{value!r} has no canonical spelling")
