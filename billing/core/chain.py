"""The hash chain of the audit log: what exactly is hashed, and how a head is signed.

Fields are length-prefixed, so that nothing can be moved from one into the next, and hashed as the
database gives them back: times in whole microseconds, data as the text that is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

GENESIS = bytes(32)
"""What the first link follows."""


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
        digest = hashlib.sha256(previous)
        for field in (
            str(self.seq),
            moment(self.at),
            self.action,
            self.actor,
            self.subject,
            "" if self.tenant_id is None else str(self.tenant_id),
            "" if self.session_id is None else str(self.session_id),
            self.data,
        ):
            encoded = field.encode()
            digest.update(len(encoded).to_bytes(8, "big"))
            digest.update(encoded)
        return digest.digest()


def moment(at: datetime) -> str:
    """A time as it is hashed and exported: UTC, microseconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def canonical(values: dict[str, Any]) -> str:
    """JSON in one spelling: sorted keys, no spaces; decimals and times as text. No floats.

    Raises ``TypeError`` for what has no single spelling.
    """
    _refuse_floats(values)
    return json.dumps(
        values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_spelled
    )


def fingerprint(values: dict[str, Any]) -> str:
    """SHA-256 of ``canonical``, hexadecimal."""
    return hashlib.sha256(canonical(values).encode()).hexdigest()


def signature(key: bytes, seq: int, head: bytes) -> str:
    """HMAC-SHA256 over a head, hexadecimal: only who has the key can have published it."""
    return hmac.new(key, b"unbroken audit head %d %s" % (seq, head), hashlib.sha256).hexdigest()


def _spelled(value: Any) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no canonical spelling")


def _refuse_floats(value: Any) -> None:
    if isinstance(value, float):
        raise TypeError("floats have no exact spelling")
    if isinstance(value, dict):
        for one in value.values():
            _refuse_floats(one)
    elif isinstance(value, list | tuple):
        for one in value:
            _refuse_floats(one)
