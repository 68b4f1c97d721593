"""Taking back what was charged, and booking by hand; large amounts need a second person."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Abs
from django.utils import timezone

from billing import locks
from billing.conf import conf
from billing.core.money import AMOUNT_PLACES, EXACT, plain, total
from billing.errors import CreditRefused, NotAllowed
from billing.models import (
    BillingPeriod,
    BulkCredit,
    BulkCreditLine,
    CreditRequest,
    LedgerEntry,
)
from billing.services import audit, ledger
from billing.services.periods import account_of, open_instead_of, period_at
from streaming.core.ids import uuid7

KEY_LENGTH = 64
UNDECIDED = BulkCredit.State.WAITING
Decision = CreditRequest.Decision
Kind = LedgerEntry.Kind


@transaction.atomic
def book_credit(
    *, charge_id: UUID, amount: Decimal, reason: str, actor: str, key: str = ""
) -> LedgerEntry | CreditRequest:
    """Give back ``amount`` (above 0) of a charge; or ask for it, if it takes a second person.

    The credit goes into the charge's own period, or if that is closed into the current one as a
    correction. All credits of a charge, requests that wait included, are never more than the charge.
    Asked again with the same ``key`` it is booked once, and what was booked is returned. Raises
    ``CreditRefused``; ``TypeError`` for a float.
    """
    amount = _positive(amount)
    charge = LedgerEntry.objects.filter(pk=charge_id).first()
    if charge is None or charge.kind != Kind.CHARGE:
        raise CreditRefused(f"{charge_id} is no charge in the ledger.")
    account_of(charge.tenant_id)
    locks.lock_account(charge.tenant_id)
    period, correction = open_instead_of(charge.period)
    locks.lock_charge(charge.pk)
    columns = {
        "tenant_id": charge.tenant_id,
        "charge": charge,
        "currency": charge.currency,
        "amount": -amount,
        "reason": reasoned(reason),
        "idempotency_key": f"credit:{charge.pk}:{_key(key)}",
    }
    if (known := _known(columns)) is not None:
        return known
    _check_fits(charge, amount, pending=True)
    if _takes_two(period, columns, actor):
        return _request(columns, actor)
    return _post(columns, period, correction, actor)


@transaction.atomic
def book_adjustment(
    *, tenant_id: int, currency: str, amount: Decimal, reason: str, actor: str, key: str = ""
) -> LedgerEntry | CreditRequest:
    """Book what is neither usage nor a credit for it: above 0 the tenant owes more, below less.

    It goes into the current period. Otherwise as ``book_credit``.
    """
    amount = _exact(amount)
    if not amount:
        raise CreditRefused("An adjustment of nothing changes nothing.")
    columns = {
        "tenant_id": tenant_id,
        "charge": None,
        "currency": currency,
        "amount": amount,
        "reason": reasoned(reason),
        "idempotency_key": f"adjustment:{tenant_id}:{_key(key)}",
    }
    try:
        LedgerEntry(currency=currency).clean_fields(
            exclude={field.name for field in LedgerEntry._meta.fields} - {"currency"}
        )
    except ValidationError as exc:
        raise CreditRefused(f"{currency!r} is no currency: use a code like EUR.") from exc
    account_of(tenant_id)
    locks.lock_account(tenant_id)
    period, correction = open_instead_of(period_at(tenant_id, timezone.now()))
    if (known := _known(columns)) is not None:
        return known
    if _takes_two(period, columns, actor):
        return _request(columns, actor)
    return _post(columns, period, correction, actor)


@transaction.atomic
def approve(request_id: int, *, actor: str) -> LedgerEntry:
    """Book what somebody else asked for. Approved again by whoever did: the entry that there is.

    Raises ``NotAllowed`` for the one who asked; ``CreditRefused`` for a request that was refused,
    or whose charge has been credited otherwise since.
    """
    request = _pending(request_id, actor, Decision.APPROVED)
    if request.entry is not None:
        return request.entry
    if person(actor) == person(request.requested_by):
        raise NotAllowed(
            "Nobody approves what they asked for themselves: it takes a second person."
        )
    locks.lock_account(request.tenant_id)
    charge = request.charge
    if charge is not None:
        period, correction = open_instead_of(charge.period)
        locks.lock_charge(charge.pk)
        _check_fits(charge, -request.amount, pending=False)
    else:
        period, correction = open_instead_of(period_at(request.tenant_id, timezone.now()))
    columns = {
        "tenant_id": request.tenant_id,
        "charge": charge,
        "currency": request.currency,
        "amount": request.amount,
        "reason": request.reason,
        "idempotency_key": request.idempotency_key,
    }
    entry = _post(columns, period, correction, request.requested_by)
    _decide(request, Decision.APPROVED, actor, entry)
    return entry


@transaction.atomic
def refuse(request_id: int, *, actor: str) -> CreditRequest:
    """Have a request come to nothing; its own author may, too. Raises ``CreditRefused``."""
    request = _pending(request_id, actor, Decision.REFUSED)
    if request.decision == Decision.PENDING:
        _decide(request, Decision.REFUSED, actor, None)
    return request


def credited(charge: LedgerEntry) -> Decimal:
    """What has been given back of a charge so far, by hand and for want of delivery; above 0."""
    return -(charge.credits.aggregate(sum=Sum("amount"))["sum"] or Decimal(0))


def waiting(tenant_id: int | None = None) -> QuerySet[CreditRequest]:
    """Requests that nobody has decided on, oldest first."""
    requests = CreditRequest.objects.filter(decision=Decision.PENDING).order_by("id")
    return requests if tenant_id is None else requests.filter(tenant_id=tenant_id)


def approval_above() -> Decimal:
    """What one person may book for a tenant within a period and currency without a second one."""
    return Decimal(conf().credit_approval_above)


def booked_alone(period: BillingPeriod, currency: str, actor: str) -> Decimal:
    """What this person has booked in a period without a second one: in whatever direction, and what
    is still to be booked of their bulk credits. The account is locked."""
    booked = (
        LedgerEntry.objects.filter(
            Q(bulk_line__isnull=True) | Q(bulk_line__bulk__decided_by=""),
            period=period,
            settlement__isnull=True,
            currency=currency,
            request__isnull=True,
        )
        .order_by()
        .values_list("actor")
        .annotate(sum=Sum(Abs("amount")))
    )
    to_book = (
        BulkCreditLine.objects.filter(
            tenant_id=period.tenant_id,
            currency=currency,
            settled=False,
            bulk__state=BulkCredit.State.BOOKING,
            bulk__decided_by="",
        )
        .order_by()
        .values_list("bulk__requested_by")
        .annotate(sum=Sum("amount"))
    )
    who = person(actor)
    return total(amount for name, amount in [*booked, *to_book] if person(name) == who)


def promised(charge: LedgerEntry) -> Decimal:
    """What requests and bulk credits that are not booked yet ask for of a charge; above 0."""
    asked = [-request.amount for request in waiting().filter(charge=charge)]
    lines = BulkCreditLine.objects.filter(
        charge=charge, settled=False, bulk__state__in=[UNDECIDED, BulkCredit.State.BOOKING]
    )
    return total([*asked, *lines.values_list("amount", flat=True)])


def _takes_two(period: BillingPeriod, columns: dict[str, Any], actor: str) -> bool:
    """Whether it is more than one person may book alone: all that they have booked so in the period
    counts together, or many small credits would pass for none."""
    alone = booked_alone(period, columns["currency"], actor)
    return EXACT.add(alone, abs(columns["amount"])) > approval_above()


def _check_fits(charge: LedgerEntry, amount: Decimal, *, pending: bool) -> None:
    """Raise ``CreditRefused`` unless so much is left of the charge, which is locked."""
    given = credited(charge)
    asked = promised(charge) if pending else Decimal(0)
    left = EXACT.subtract(EXACT.subtract(charge.amount, given), asked)
    if amount > left:
        raise CreditRefused(
            f"Of this charge of {plain(charge.amount)} {charge.currency},"
            f" {plain(given)} were given back and {plain(asked)} are asked for:"
            f" a credit of {plain(amount)} is more than is left."
        )


def _known(columns: dict[str, Any]) -> LedgerEntry | CreditRequest | None:
    """What was booked, or asked for, with the same key. Raises ``CreditRefused`` if it differs."""
    key = columns["idempotency_key"]
    known: LedgerEntry | CreditRequest | None = (
        LedgerEntry.objects.filter(idempotency_key=key).first()
        or CreditRequest.objects.filter(idempotency_key=key).first()
    )
    if known is None:
        return None
    if (known.amount, known.currency) != (columns["amount"], columns["currency"]):
        raise CreditRefused("This key was used before, for another amount.")
    return known


def _request(columns: dict[str, Any], actor: str) -> CreditRequest:
    request = CreditRequest.objects.create(
        **columns, requested_by=actor, requested_at=timezone.now()
    )
    _audit("credit.requested", request, actor)
    return request


def _post(
    columns: dict[str, Any], period: BillingPeriod, correction: bool, actor: str
) -> LedgerEntry:
    charge: LedgerEntry | None = columns["charge"]
    return ledger.post(
        kind=Kind.ADJUSTMENT if charge is None else Kind.CREDIT,
        period=period,
        charge=charge,
        session_id=None if charge is None else charge.session_id,
        model="" if charge is None else charge.model,
        cost_centre="" if charge is None else charge.cost_centre,
        currency=columns["currency"],
        amount=columns["amount"],
        reason=columns["reason"],
        idempotency_key=columns["idempotency_key"],
        correction=correction,
        actor=actor,
    )


def _pending(request_id: int, actor: str, decision: Decision) -> CreditRequest:
    """The request, locked; it is pending, or was decided so by the same person."""
    if actor == audit.SYSTEM:
        raise NotAllowed("Only people decide on requests.")
    try:
        request = locks.lock_request(request_id)
    except CreditRequest.DoesNotExist as exc:
        raise CreditRefused(f"There is no request {request_id}.") from exc
    if request.decision == Decision.PENDING:
        return request
    if (request.decision, person(request.decided_by)) != (decision.value, person(actor)):
        raise CreditRefused(f"It was {request.decision} before, by {request.decided_by}.")
    return request


def _decide(
    request: CreditRequest, decision: Decision, actor: str, entry: LedgerEntry | None
) -> None:
    request.decision = decision
    request.decided_by = actor
    request.decided_at = timezone.now()
    request.entry = entry
    request.save(update_fields=["decision", "decided_by", "decided_at", "entry"])
    _audit(f"credit.{decision.value}", request, actor)


def _audit(action: str, request: CreditRequest, actor: str) -> None:
    audit.append(
        action,
        actor=actor,
        subject=f"credit-request:{request.pk}",
        tenant_id=request.tenant_id,
        session_id=None if request.charge is None else request.charge.session_id,
        data={
            "amount": request.amount,
            "currency": request.currency,
            "charge": request.charge_id,
            "requested_by": request.requested_by,
            "entry": request.entry_id,
        },
    )


def person(actor: str) -> str:
    """Alice is one person, whether in the admin (``user:alice``) or on a terminal."""
    return actor.partition(":")[2] or actor


def _positive(amount: Decimal) -> Decimal:
    amount = _exact(amount)
    if amount <= 0:
        raise CreditRefused("A credit is an amount above 0.")
    return amount


def _exact(amount: Decimal) -> Decimal:
    if not isinstance(amount, Decimal):
        raise TypeError("an amount is a Decimal")
    exponent = amount.as_tuple().exponent
    if not isinstance(exponent, int) or -exponent > AMOUNT_PLACES or amount.adjusted() > 20:
        raise CreditRefused(f"{amount} is no amount that can be booked.")
    return amount


def reasoned(reason: str) -> str:
    reason = reason.strip()
    if not reason or len(reason) > 300:
        raise CreditRefused("It needs a reason, of 300 characters at most.")
    return reason


def _key(key: str) -> str:
    if len(key) > KEY_LENGTH:
        raise CreditRefused(f"A key has {KEY_LENGTH} characters at most.")
    return key or str(uuid7())
