"""Every row lock of billing, and the order in which they are taken.

1. the usage record of a session (whoever settles it), 2. the period (``FOR KEY SHARE`` by those who
add lines, ``FOR UPDATE`` by who closes it), 3. the charge that a credit takes from, 4. the account,
5. its quota use, 6. a usage sink, 7. the audit head, last and shortest. All of them end with the
transaction.
"""

from __future__ import annotations

from uuid import UUID

from django.db import connection

from billing.core.chain import GENESIS
from billing.models import (
    AuditHead,
    BillingAccount,
    BillingPeriod,
    LedgerEntry,
    QuotaUse,
    UsageRecord,
    UsageSink,
)

LEDGER = 0x554E43  # keeps our advisory locks apart from others


def lock_usage(session_id: UUID) -> UsageRecord | None:
    """The usage record of a session, for us alone; None: there is none yet."""
    return UsageRecord.objects.select_for_update().filter(pk=session_id).first()


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


def lock_account(tenant_id: int) -> BillingAccount:
    """The account of a tenant, for us alone; others may go on adding rows that refer to it."""
    return BillingAccount.objects.select_for_update(no_key=True).get(pk=tenant_id)


def lock_quota(use_id: int) -> QuotaUse:
    """What an account has used in a period, for us alone."""
    return QuotaUse.objects.select_for_update().get(pk=use_id)


def lock_sink(sink_id: int) -> UsageSink:
    """A usage sink, for us alone; others may go on adding deliveries to it."""
    return UsageSink.objects.select_for_update(no_key=True).get(pk=sink_id)


def lock_audit_head() -> AuditHead:
    """The end of the chain, for us alone. Made when there is none (the first time, and in tests)."""
    AuditHead.objects.bulk_create([AuditHead(id=1, seq=0, hash=GENESIS)], ignore_conflicts=True)
    return AuditHead.objects.select_for_update().get(pk=1)
