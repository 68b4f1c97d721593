"""Appending to the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection, models, transaction
from django.utils import timezone

from billing.core.chain import Link, canonical, fingerprint, printable
from billing.core.money import plain
from billing.locks import lock_audit_head
from billing.models import (
    AuditEntry,
    BillingPeriod,
    LedgerEntry,
    PeriodTotal,
    PricePlan,
    Settlement,
)

SYSTEM = "system"

_SUBJECTS: dict[type[models.Model], str] = {
    LedgerEntry: "ledger",
    Settlement: "settlement",
    PeriodTotal: "total",
    BillingPeriod: "period",
    PricePlan: "price",
}

_APPEND = """
WITH links AS (
    INSERT INTO billing_auditentry
        (seq, at, action, actor, subject, tenant_id, session_id, data, previous, hash)
    SELECT * FROM unnest(
        %s::bigint[], %s::timestamptz[], %s::text[], %s::text[], %s::text[],
        %s::bigint[], %s::uuid[], %s::text[], %s::bytea[], %s::bytea[]
    )
)
UPDATE billing_audithead SET seq = %s, hash = %s WHERE id = 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A link that has no place in the chain yet; ``data`` is canonical JSON."""

    action: str
    actor: str
    subject: str
    tenant_id: int | None = None
    session_id: UUID | None = None
    data: str = "{}"


def draft(
    action: str,
    *,
    actor: str,
    subject: str,
    tenant_id: int | None = None,
    session_id: UUID | None = None,
    data: dict[str, Any] | None = None,
) -> Draft:
    """For ``append_many``, whose lock comes last in a transaction.

    ``data`` may hold text, integers, booleans, decimals and times; nothing personal, no content.
    Raises ``TypeError`` for floats.
    """
    return Draft(
        action=action,
        actor=printable(actor)[:150],
        subject=printable(subject)[:200],
        tenant_id=tenant_id,
        session_id=session_id,
        data=canonical(data or {}),
    )


def draft_of(
    action: str,
    row: LedgerEntry | Settlement | PeriodTotal | BillingPeriod | PricePlan,
    *,
    actor: str,
    tenant_id: int | None,
    session_id: UUID | None = None,
    data: dict[str, Any] | None = None,
) -> Draft:
    """The same for a row that is not to change from now on: its hash enters the chain.

    ``verification`` looks for exactly one such link of each row; of a price plan, whose end may
    still change, the last one counts.
    """
    return draft(
        action,
        actor=actor,
        subject=subject_of(type(row), row.pk),
        tenant_id=tenant_id,
        session_id=session_id,
        data={**(data or {}), "sha256": row_hash(row)},
    )


def append(
    action: str,
    *,
    actor: str,
    subject: str,
    tenant_id: int | None = None,
    session_id: UUID | None = None,
    data: dict[str, Any] | None = None,
) -> AuditEntry:
    """Add a link, in the transaction of what it tells of. Locks the chain's end: call it last.

    See ``draft`` for what ``data`` may hold.
    """
    one = draft(
        action, actor=actor, subject=subject, tenant_id=tenant_id, session_id=session_id, data=data
    )
    return append_many([one])[0]


# No savepoint: whatever cannot be audited must not happen.
@transaction.atomic(savepoint=False)
def append_many(drafts: Sequence[Draft]) -> list[AuditEntry]:
    """Add links in this order: two statements, however many they are."""
    if not drafts:
        return []
    head = lock_audit_head()
    seq, previous = head.seq, bytes(head.hash)
    at = timezone.now()  # after the lock, so that times are in the order of the chain
    entries = []
    for one in drafts:
        seq += 1
        link = Link(
            seq, at, one.action, one.actor, one.subject, one.tenant_id, one.session_id, one.data
        )
        hashed = link.hash(previous)
        entries.append(
            AuditEntry(
                seq=seq, at=at, action=one.action, actor=one.actor, subject=one.subject,
                tenant_id=one.tenant_id, session_id=one.session_id, data=one.data,
                previous=previous, hash=hashed,
            )
        )  # fmt: skip
        previous = hashed
    columns = [
        [getattr(entry, field.attname) for entry in entries]
        for field in AuditEntry._meta.concrete_fields
    ]
    with connection.cursor() as cursor:
        cursor.execute(_APPEND, [*columns, seq, previous])
    return entries


def subject_of(model: type[models.Model], key: Any) -> str:
    """How the log names a row whose hash is in it: ``ledger:<id>``, ``settlement:<id>``."""
    return f"{_SUBJECTS[model]}:{key}"


def row_hash(row: models.Model) -> str:
    """SHA-256 over ``hashed_fields``: the same before a row is stored and when it is read back."""
    return fingerprint(hashed_fields(row))


def hashed_fields(row: models.Model) -> dict[str, Any]:
    """All columns of a row, but those that are null: so a column may be added to old rows later.

    Of a price plan also whose list it is in: that says whom the prices are for.
    Raises ``ValueError`` for a number with more decimals than its column keeps.
    """
    values = {}
    for field in row._meta.concrete_fields:
        value = getattr(row, field.attname)
        if value is None:
            continue
        if isinstance(value, float):
            raise TypeError(f"{field.attname} is a float: it has no exact spelling")
        value = field.to_python(value)
        if isinstance(field, models.DecimalField):
            decimals = plain(value).partition(".")[2]
            if len(decimals) > field.decimal_places:
                raise ValueError(f"{field.attname} keeps {field.decimal_places} decimals: {value}")
        values[field.attname] = value
    if isinstance(row, PricePlan):
        values["list"] = {"tenant_id": row.list.tenant_id, "model": row.list.model}
    return values
