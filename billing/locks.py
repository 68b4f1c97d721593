"""Every row lock of billing, and the order in which they are taken.

1. the usage record of a session (whoever settles it) or a request for a credit or a bulk credit (whoever
decides it, or books it) or a price list (whoever sets a price), 2. the account (whoever begins a month, or books by hand), 3. the
period (``FOR KEY SHARE`` by those who add lines, ``FOR UPDATE`` by who closes it), 4. the charge that a
credit takes from, 5. the quota use of an account, 6. a usage sink, 7. the audit head, last and
shortest. All of them end with the transaction. (``only_announcer`` never waits.) Of several accounts that with
the smallest key comes first, and so do charges.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import connection

from billing.core.chain import GENESIS
from billing.models import (
    AuditHead,
    BillingAccount,
    BillingPeriod,
    BulkCredit,
    CreditRequest,
    LedgerEntry,
    PriceList,
    QuotaUse,
    UsageRecord,
    UsageSink,
)

LEDGER = 0x554E43  # keeps our advisory locks apart from others
ANNOUNCEMENTS = 0x554E44


def lock_usage(session_id: UUID) -> UsageRecord | None:
    """The usage record of a session, for us alone; None: there is none yet."""
    found = UsageRecord.objects.select_for_update(of=("self",)).select_related("plan")
    return found.filter(pk=session_id).first()


def add_usage(usage: UsageRecord) -> bool:
    """Store a session's first record, which nobody else has while we do; False: somebody was
    faster (that is waited for)."""
    columns = UsageRecord._meta.concrete_fields
    names = ", ".join(f'"{column.column}"' for column in columns)
    marks = ", ".join(["%s"] * len(columns))
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO billing_usagerecord ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING",
            [
                column.get_db_prep_save(getattr(usage, column.attname), connection)
                for column in columns
            ],
        )
        usage._state.adding = cursor.rowcount == 0
        return cursor.rowcount == 1


def lock_request(request_id: int) -> CreditRequest:
    """A request for a credit, for us alone: it is decided once."""
    return CreditRequest.objects.select_for_update().get(pk=request_id)


def lock_bulk_credit(bulk_id: int) -> BulkCredit:
    """A bulk credit, for us alone: it is decided once, and booked by one at a time."""
    return BulkCredit.objects.select_for_update(no_key=True, of=("self",)).get(pk=bulk_id)


def lock_price_list(list_id: int) -> PriceList:
    """A price list, for us alone: its plans follow each other."""
    return PriceList.objects.select_for_update(no_key=True).get(pk=list_id)


def lock_account(tenant_id: int) -> BillingAccount:
    """An account, for us alone among those who begin its months and book by hand."""
    return BillingAccount.objects.select_for_update(no_key=True).get(pk=tenant_id)


def share_period(period_id: int) -> BillingPeriod:
    """The period as it stands; it can't be closed before we are done."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM billing_billingperiod WHERE id = %s FOR KEY SHARE", [period_id]
        )
    return BillingPeriod.objects.get(pk=period_id)


def lock_period(period_id: int) -> BillingPeriod:
    """The period, for us alone: nobody adds a line meanwhile."""
    return BillingPeriod.objects.select_for_update().get(pk=period_id)


def lock_charge(entry_id: UUID) -> LedgerEntry:
    """A charge, for us alone: nobody else credits it meanwhile.

    By an advisory lock: to lock a row takes the privilege to change it, which nobody has.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [LEDGER, str(entry_id)])
    return LedgerEntry.objects.get(pk=entry_id)


def lock_charges(entry_ids: Iterable[UUID]) -> None:
    """Several charges, as ``lock_charge`` does; one statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(%s, hashtext(id)) FROM"
            " (SELECT id FROM unnest(%s::text[]) AS id ORDER BY id) AS charges",
            [LEDGER, [str(entry_id) for entry_id in entry_ids]],
        )
        cursor.fetchall()


def lock_quota(use_id: int) -> QuotaUse:
    """What an account has used in a period, for us alone."""
    return QuotaUse.objects.select_for_update().get(pk=use_id)


def lock_sink(sink_id: int) -> UsageSink:
    """A usage sink, for us alone; others may go on adding deliveries to it."""
    return UsageSink.objects.select_for_update(no_key=True).get(pk=sink_id)


def lock_audit_head() -> AuditHead:
    """The end of the chain, for us alone. Made when there is none: the first time."""
    head = AuditHead.objects.select_for_update().filter(pk=1).first()
    if head is not None:
        return head
    AuditHead.objects.bulk_create([AuditHead(id=1, seq=0, hash=GENESIS)], ignore_conflicts=True)
    return AuditHead.objects.select_for_update().get(pk=1)


def only_announcer() -> bool:
    """Whether we alone may bring announcements into the log until the transaction ends: their order
    is kept. Does not wait."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, 0)", [ANNOUNCEMENTS])
        return bool(cursor.fetchone()[0])
