"""Giving back part of what an incident's sessions were charged, for all of them at once.

What is to be credited is fixed, charge by charge, when somebody says so (``begin``); a second person may
have to agree (``approve``); then it is booked in short transactions (``carry_on``), by whoever comes to
it: broken off at any moment, the next run goes on. A charge is credited once for an incident, whatever
is asked for how often.

Who may book an amount alone may book a bulk alone whose *sum* is not more: neither many small charges
nor several bulks of one incident pass for small.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db import connection, transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from billing import locks
from billing.core.money import EXACT, plain
from billing.errors import CreditRefused, NotAllowed
from billing.models import BillingPeriod, BulkCredit, BulkCreditLine, LedgerEntry
from billing.services import audit, bills, credits, ledger
from billing.services.periods import account_of, open_instead_of
from streaming.models import Incident
from streaming.services.sql import rows

BATCH = 200
RUN_SECONDS = 1.0

State = BulkCredit.State
Which = BulkCredit.Which

_WHICH = {
    Which.ALL: "true",
    Which.NOTICED: "s.noticed",
    Which.LOST: "s.outcome = 'lost'",
}

# ``remaining``: what nobody has given back, or is about to. Multiplied, as a division would round. What
# is looked up in the table that lines are added to is so once and before.
_CREDITS = """
WITH before AS MATERIALIZED (
    SELECT l.charge_id FROM billing_bulkcreditline l JOIN billing_bulkcredit b ON b.id = l.bulk_id
    WHERE b.incident_id = %(incident)s AND b.state <> 'refused'
), promised AS MATERIALIZED (
    SELECT charge_id, sum(amount) AS amount FROM (
        SELECT charge_id, -amount AS amount FROM billing_creditrequest
        WHERE decision = 'pending' AND charge_id IS NOT NULL
        UNION ALL
        SELECT l.charge_id, l.amount FROM billing_bulkcreditline l
        JOIN billing_bulkcredit b ON b.id = l.bulk_id
        WHERE NOT l.settled AND b.state IN ('waiting', 'booking')
    ) open_ones GROUP BY charge_id
), charges AS MATERIALIZED (
    SELECT e.id, e.tenant_id, e.currency, e.session_id, e.amount, e.amount
        + coalesce((SELECT sum(c.amount) FROM billing_ledgerentry c WHERE c.charge_id = e.id), 0)
        - coalesce(promised.amount, 0) AS remaining
    FROM streaming_streamsession s JOIN billing_ledgerentry e ON e.session_id = s.id
    LEFT JOIN promised ON promised.charge_id = e.id
    WHERE s.incident_id = %(incident)s AND {which} AND e.kind = 'charge' AND e.amount > 0
    AND e.id NOT IN (SELECT charge_id FROM before)
), credits AS (
    SELECT *, trunc(remaining * %(percent)s * 0.01, 18) AS credit FROM charges WHERE remaining > 0
)
"""

_TOTALS = """
SELECT tenant_id, currency, count(DISTINCT session_id), count(*), sum(amount), sum(remaining),
    sum(credit)
FROM credits WHERE credit > 0 GROUP BY tenant_id, currency ORDER BY tenant_id, currency
"""

_ADD_LINES = """
INSERT INTO billing_bulkcreditline (bulk_id, charge_id, tenant_id, currency, amount)
"""

_LINES = """
SELECT %(bulk)s, id, tenant_id, currency, credit FROM credits
WHERE credit > 0 ORDER BY tenant_id, id
"""

_BY_PERIOD = """
SELECT e.period_id, l.currency, sum(l.amount) FROM billing_bulkcreditline l
JOIN billing_ledgerentry e ON e.id = l.charge_id
WHERE l.bulk_id = %s GROUP BY e.period_id, l.currency ORDER BY e.period_id, l.currency
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be given back. ``percent``: of what is left of each charge."""

    incident_id: int
    which: str
    percent: Decimal

    @property
    def arguments(self) -> dict[str, Any]:
        return {"incident": self.incident_id, "percent": self.percent}

    @property
    def credits(self) -> str:
        return _CREDITS.format(which=_WHICH[Which(self.which)])

    def check(self) -> None:
        """Raise ``CreditRefused`` for what is no choice."""
        if self.which not in Which.values:
            raise CreditRefused(f"{self.which!r} says nothing of an incident's sessions.")
        exponent = self.percent.as_tuple().exponent
        if not isinstance(exponent, int) or exponent < -2 or not 0 < self.percent <= 100:
            raise CreditRefused("Above 0 and up to 100 percent, with two decimals at most.")
        if not Incident.objects.filter(pk=self.incident_id).exists():
            raise CreditRefused("There is no such incident.")


@dataclass(frozen=True, slots=True)
class TenantTotal:
    """``charged`` and ``remaining`` are of the charges that are credited."""

    tenant_id: int
    currency: str
    sessions: int
    charges: int
    charged: Decimal
    remaining: Decimal
    credit: Decimal


@dataclass(frozen=True, slots=True)
class Preview:
    """What a choice would come to at the moment. ``seen`` stands for its figures."""

    totals: list[TenantTotal]

    @property
    def sums(self) -> dict[str, Decimal]:
        """By currency."""
        return _sums((one.currency, one.credit) for one in self.totals)

    @property
    def sessions(self) -> int:
        return sum(one.sessions for one in self.totals)

    @property
    def seen(self) -> str:
        said = ";".join(
            f"{one.tenant_id} {one.currency} {one.charges} {plain(one.credit)}"
            for one in self.totals
        )
        return hashlib.sha256(said.encode()).hexdigest()[:32]


def preview(choice: Choice) -> Preview:
    """Look what it would come to; nothing is changed. One query. Raises ``CreditRefused``."""
    choice.check()
    found = rows(choice.credits + _TOTALS, choice.arguments)
    return Preview([TenantTotal(*row) for row in found])


@transaction.atomic
def begin(choice: Choice, *, reason: str, actor: str, seen: str | None = None) -> BulkCredit:
    """Fix what is credited; it is booked from now on, or waits for a second person to agree.

    ``seen``: of the preview that somebody has agreed to; what has changed since is refused. Raises
    ``CreditRefused``, also where nothing is left to credit.
    """
    choice.check()
    reason = credits.reasoned(reason)
    tenants = {one.tenant_id for one in preview(choice).totals}
    for tenant_id in sorted(tenants):
        account_of(tenant_id)
        locks.lock_account(tenant_id)
    found = preview(choice)  # again, now that nobody else books by hand for them
    if not found.totals:
        raise CreditRefused("There is nothing (left) to credit for this incident.")
    if seen not in (None, found.seen) or not tenants.issuperset(
        one.tenant_id for one in found.totals
    ):
        raise CreditRefused("The figures have changed meanwhile: look at them again.")
    bulk = BulkCredit.objects.create(
        incident_id=choice.incident_id,
        which=choice.which,
        percent=choice.percent,
        reason=reason,
        state=State.BOOKING,
        requested_by=actor,
        requested_at=timezone.now(),
    )
    with connection.cursor() as cursor:
        cursor.execute(
            _ADD_LINES + choice.credits + _LINES,
            {**choice.arguments, "bulk": bulk.pk},
        )
        # So many rows at once are news to the planner.
        cursor.execute("ANALYZE billing_bulkcreditline")
    if takes_two(bulk):
        bulk.state = State.WAITING
        bulk.save(update_fields=["state"])
    _audit("requested" if bulk.state == State.WAITING else "begun", bulk, actor)
    return bulk


@transaction.atomic
def approve(bulk_id: int, *, actor: str) -> BulkCredit:
    """Have booked what somebody else asked for. Raises ``NotAllowed`` and ``CreditRefused``."""
    bulk = _undecided(bulk_id, actor)
    if credits.person(actor) == credits.person(bulk.requested_by):
        raise NotAllowed(
            "Nobody approves what they asked for themselves: it takes a second person."
        )
    return _decide(bulk, State.BOOKING, "approved", actor)


@transaction.atomic
def refuse(bulk_id: int, *, actor: str) -> BulkCredit:
    """Have it come to nothing; its own author may, too. Raises ``NotAllowed``, ``CreditRefused``."""
    return _decide(_undecided(bulk_id, actor), State.REFUSED, "refused", actor)


def carry_on(seconds: float = RUN_SECONDS, bulk_id: int | None = None) -> dict[str, int]:
    """Book what is to be booked, of one bulk credit or of all, for some seconds.

    May run several times at once, and be killed at any moment. In the answer: ``lines``, and ``more``:
    there are others.
    """
    until = time.monotonic() + seconds
    waiting = BulkCredit.objects.filter(state=State.BOOKING).order_by("pk")
    if bulk_id is not None:
        waiting = waiting.filter(pk=bulk_id)
    lines = 0
    for pk in list(waiting.values_list("pk", flat=True)):
        while (booked := _book_batch(pk)) is not None:
            lines += booked
            if time.monotonic() > until:
                return {"lines": lines, "more": int(waiting.exists())}
    return {"lines": lines, "more": 0}


def undecided(tenant_id: int | None = None) -> QuerySet[BulkCredit]:
    """Bulk credits that are not booked, with lines of this tenant."""
    open_ones = BulkCredit.objects.filter(state__in=[State.WAITING, State.BOOKING])
    if tenant_id is None:
        return open_ones
    lines = BulkCreditLine.objects.filter(tenant_id=tenant_id, settled=False)
    return open_ones.filter(pk__in=lines.values("bulk"))


def takes_two(bulk: BulkCredit) -> bool:
    """Whether it is more than one person may book alone; its lines are stored, its accounts locked."""
    most = credits.approval_above()
    who = credits.person(bulk.requested_by)
    own = [
        one.pk
        for one in BulkCredit.objects.filter(incident=bulk.incident_id, decided_by="")
        if credits.person(one.requested_by) == who and one.state in (State.BOOKING, State.DONE)
    ]
    alone = BulkCreditLine.objects.filter(bulk__in=own).order_by().values_list("currency")
    if any(amount > most for _, amount in alone.annotate(sum=Sum("amount"))):
        return True
    # What is still to be booked of this very bulk counts among what its person books alone.
    places = rows(_BY_PERIOD, bulk.pk)
    periods = BillingPeriod.objects.in_bulk({period_id for period_id, _, _ in places})
    into = {pk: open_instead_of(periods[pk])[0] for pk in sorted(periods)}
    wanted = {(into[pk], currency) for pk, currency, _ in places}
    return any(
        credits.booked_alone(period, currency, bulk.requested_by) > most
        for period, currency in wanted
    )


# --- booking ----------------------------------------------------------------------------------------


@transaction.atomic
def _book_batch(bulk_id: int) -> int | None:
    """Book some lines of one tenant; how many. None: all are."""
    bulk = locks.lock_bulk_credit(bulk_id)
    if bulk.state != State.BOOKING:
        return None
    open_lines = bulk.lines.filter(settled=False).order_by("tenant_id", "id")
    tenant_id = open_lines.values_list("tenant_id", flat=True).first()
    if tenant_id is None:
        bulk.state = State.DONE
        bulk.save(update_fields=["state"])
        return None
    lines = list(open_lines.filter(tenant_id=tenant_id).select_related("charge__period")[:BATCH])
    locks.lock_account(tenant_id)
    periods = {line.charge.period_id: line.charge.period for line in lines}
    places = {pk: open_instead_of(periods[pk]) for pk in sorted(periods)}
    locks.lock_charges(line.charge_id for line in lines)
    remaining = bills.left_of(line.charge for line in lines)
    keys = {line.pk: f"credit:{line.charge_id}:incident:{bulk.incident_id}" for line in lines}
    booked = {
        entry.idempotency_key: entry
        for entry in LedgerEntry.objects.filter(idempotency_key__in=keys.values())
    }
    entries = []
    for line in lines:
        line.settled = True
        line.entry = booked.get(keys[line.pk])
        if line.entry is not None:
            line.note = "was credited before"
            continue
        amount = min(line.amount, remaining[line.charge_id])
        if amount < line.amount:
            line.note = "not so much was left of the charge"
        if amount > 0:
            period, correction = places[line.charge.period_id]
            line.entry = _entry(bulk, line.charge, period, correction, amount, keys[line.pk])
            entries.append(line.entry)
    ledger.post_many(entries)
    BulkCreditLine.objects.bulk_update(lines, ["settled", "entry", "note"])
    return len(lines)


def _entry(
    bulk: BulkCredit,
    charge: LedgerEntry,
    period: BillingPeriod,
    correction: bool,
    amount: Decimal,
    key: str,
) -> LedgerEntry:
    return LedgerEntry(
        kind=LedgerEntry.Kind.CREDIT,
        tenant_id=charge.tenant_id,
        period=period,
        charge=charge,
        session_id=charge.session_id,
        model=charge.model,
        cost_centre=charge.cost_centre,
        currency=charge.currency,
        amount=-amount,
        correction=correction,
        reason=bulk.reason,
        idempotency_key=key,
        actor=bulk.requested_by,
        created_at=timezone.now(),
    )


# --- deciding ---------------------------------------------------------------------------------------


def _undecided(bulk_id: int, actor: str) -> BulkCredit:
    if actor == audit.SYSTEM:
        raise NotAllowed("Only people decide on credits.")
    try:
        bulk = locks.lock_bulk_credit(bulk_id)
    except BulkCredit.DoesNotExist as exc:
        raise CreditRefused(f"There is no bulk credit {bulk_id}.") from exc
    if bulk.state != State.WAITING:
        by = f", by {bulk.decided_by}" if bulk.decided_by else ""
        raise CreditRefused(f"It does not wait for anybody: {bulk.get_state_display()}{by}.")
    return bulk


def _decide(bulk: BulkCredit, state: BulkCredit.State, word: str, actor: str) -> BulkCredit:
    bulk.state, bulk.decided_by, bulk.decided_at = state, actor, timezone.now()
    bulk.save(update_fields=["state", "decided_by", "decided_at"])
    _audit(word, bulk, actor)
    return bulk


def _audit(word: str, bulk: BulkCredit, actor: str) -> None:
    sums = _sums(bulk.lines.values_list("currency").annotate(Sum("amount")))
    audit.append(
        f"bulk_credit.{word}",
        actor=actor,
        subject=f"bulk-credit:{bulk.pk}",
        data={
            "incident": bulk.incident_id,
            "which": bulk.which,
            "percent": bulk.percent,
            "charges": bulk.lines.count(),
            "sums": ", ".join(f"{plain(amount)} {code}" for code, amount in sorted(sums.items())),
            "requested_by": bulk.requested_by,
        },
    )


def _sums(amounts: Any) -> dict[str, Decimal]:
    found: dict[str, Decimal] = defaultdict(Decimal)
    for currency, amount in amounts:
        found[currency] = EXACT.add(found[currency], amount)
    return dict(found)
