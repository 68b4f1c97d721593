"""Proving, for a tenant and a period, that ledger = settlements = log; and where they are not.

A period of a million lines is walked through page by page, so memory does not grow with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, Sum

from billing.core import money
from billing.core.differences import Difference, Kind
from billing.models import (
    AuditEntry,
    BillingPeriod,
    LedgerEntry,
    PeriodTotal,
    Settlement,
    UsageRecord,
    Waste,
)
from billing.services import audit
from billing.services.figures import CONTENT
from billing.services.proofs import Case, differences_of
from streaming.models import Attempt, OutboxMessage, StreamSession, TokenCheckpoint
from streaming.services.partitions import KEEP_LOG
from streaming.services.sql import rows

PAGE = 500
"""Settlements that are looked at together."""
KEPT = 1000
"""Differences that a report holds; all are counted."""
LOG_ROWS = 200
"""Rows of logs that are in memory at once."""

_PAGE = """
SELECT id, usage_id, n FROM billing_settlement WHERE period_id = %s AND id > %s ORDER BY id LIMIT %s
"""

_TOTALS = """
SELECT currency, count(*), sum(amount),
    coalesce(sum(amount) FILTER (WHERE kind = 'charge'), 0),
    coalesce(sum(amount) FILTER (WHERE kind = 'credit'), 0),
    coalesce(sum(amount) FILTER (WHERE kind = 'adjustment'), 0),
    coalesce(sum(amount) FILTER (WHERE settlement_id IS NOT NULL), 0)
FROM billing_ledgerentry WHERE period_id = %s GROUP BY currency ORDER BY currency
"""

_UNSETTLED = """
SELECT s.id, s.state FROM streaming_streamsession s
WHERE s.tenant_id = %(tenant)s AND {} AND NOT EXISTS (
    SELECT 1 FROM billing_usagerecord u WHERE u.session_id = s.id AND u.settlements > 0
) AND NOT EXISTS (
    SELECT 1 FROM streaming_outboxmessage m
    WHERE m.session_id = s.id AND m.handled_at IS NULL AND m.kind <> 'audit'
) AND s.id > %(after)s ORDER BY s.id LIMIT %(page)s
"""
_ENDED = _UNSETTLED.format("s.ended_at >= %(starts)s AND s.ended_at < %(ends)s")
_SUSPENDED = _UNSETTLED.format(
    "s.state = 'suspended' AND s.suspended_at >= %(starts)s AND s.suspended_at < %(ends)s"
)

# Lines that no settlement of the period has led to.
_ASTRAY = """
SELECT e.id, e.session_id, e.amount, e.currency, s.period_id FROM billing_ledgerentry e
LEFT JOIN billing_settlement s ON s.id = e.settlement_id
WHERE e.period_id = %s AND e.id > %s AND (s.period_id <> e.period_id OR (
    e.session_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM billing_usagerecord u WHERE u.session_id = e.session_id)
)) ORDER BY e.id LIMIT %s
"""

_EXCEEDED = """
SELECT c.id, c.session_id, -sum(e.amount), c.amount
FROM billing_ledgerentry e JOIN billing_ledgerentry c ON c.id = e.charge_id
WHERE e.charge_id > %(after)s AND e.charge_id IN (
    SELECT charge_id FROM billing_ledgerentry
    WHERE period_id = %(period)s AND charge_id IS NOT NULL
) GROUP BY c.id HAVING -sum(e.amount) > c.amount ORDER BY c.id LIMIT %(page)s
"""

NOBODY = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Total:
    """The lines of a period in one currency; all exact. ``settled``: those of settlements."""

    currency: str
    lines: int
    amount: Decimal
    charges: Decimal
    credits: Decimal
    adjustments: Decimal
    settled: Decimal


@dataclass(slots=True)
class EngineTally:
    """Attempts of one node that its engine told the tokens of, and both counts of them."""

    attempts: int = 0
    told: int = 0
    counted: int = 0
    differing: int = 0


@dataclass(slots=True)
class Report:
    """What was looked at, and what was found. Figures of sessions are over all of their lines."""

    period: BillingPeriod
    sessions: int = 0
    settlements: int = 0
    recounted: int = 0
    """Sessions whose delivered tokens were counted again in their log, digest and all."""
    purged: int = 0
    """Sessions of whose log only its length, its digest and its attempts' ranges are left."""
    in_flux: int = 0
    """Sessions among them that go on, or wait to be settled: looked at as far as they go."""
    log_tokens: int = 0
    delivered_tokens: int = 0
    billed_tokens: int = 0
    generated_tokens: int = 0
    wasted_tokens: int = 0
    totals: list[Total] = field(default_factory=list)
    engines: dict[str, EngineTally] = field(default_factory=dict)
    found: dict[Kind, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    """The first ``KEPT``."""

    @property
    def lines(self) -> int:
        return sum(total.lines for total in self.totals)

    @property
    def is_proven(self) -> bool:
        """Whether nothing differs."""
        return not self.found

    def count(self, *kinds: Kind) -> int:
        """How many differences of these kinds there are."""
        return sum(self.found.get(kind, 0) for kind in kinds)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: no floats, amounts as text. Without the differences."""
        return {
            "tenant": self.period.tenant.name,
            "period": self.period.name,
            "sessions": self.sessions,
            "settlements": self.settlements,
            "lines": self.lines,
            "source": {"log": self.recounted, "digest": self.purged},
            "in_flux": self.in_flux,
            "tokens": {
                "log": self.log_tokens,
                "delivered": self.delivered_tokens,
                "billed": self.billed_tokens,
                "generated": self.generated_tokens,
                "waste": self.wasted_tokens,
            },
            "totals": {
                total.currency: {
                    name: money.plain(getattr(total, name))
                    for name in ("amount", "charges", "credits", "adjustments", "settled")
                }
                for total in self.totals
            },
            "engines": {
                node: {
                    "attempts": tally.attempts,
                    "told": tally.told,
                    "counted": tally.counted,
                    "differing": tally.differing,
                }
                for node, tally in sorted(self.engines.items())
            },
            "found": {str(kind): count for kind, count in self.found.items()},
        }


def reconcile(
    period: BillingPeriod, *, tell: Callable[[Difference], object] | None = None
) -> Report:
    """Compare everything that is stored about the period's lines; nothing is changed.

    The period may be one that is not stored (``periods.periods_named``).
    ``tell`` is called with every difference as it is found; the report holds the first of them.
    """
    report = Report(period)

    def note(difference: Difference) -> None:
        report.found[difference.kind] = report.found.get(difference.kind, 0) + 1
        if len(report.differences) < KEPT:
            report.differences.append(difference)
        if tell is not None:
            tell(difference)

    with _one_moment():
        report.totals = totals_of(period)
        for difference in chain(
            _frozen(report), _unsettled(period), _astray(period), _exceeded(period)
        ):
            note(difference)
        for case in _cases(period, report):
            _take_in(report, case)
            for difference in differences_of(case):
                note(difference)
    return report


def totals_of(period: BillingPeriod) -> list[Total]:
    """What the ledger says of a period, by currency; exact."""
    return [Total(*row) for row in rows(_TOTALS, period.pk)]


def was_closed(period: BillingPeriod) -> bool:
    """Whether it has totals, or the audit log tells of its close, whatever its own row says."""
    if period.pk is None:
        return False
    closed = AuditEntry.objects.filter(
        action="period.closed", subject=audit.subject_of(BillingPeriod, period.pk)
    )
    return PeriodTotal.objects.filter(period=period).exists() or closed.exists()


@contextmanager
def _one_moment() -> Iterator[None]:
    """Have everything read as it was at one moment, whatever is settled meanwhile.

    Inside somebody's transaction it is as that one reads.
    """
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute(KEEP_LOG)
        yield


def _frozen(report: Report) -> Iterator[Difference]:
    """What was frozen when the period was closed is what its lines come to.

    Whether it was is told by its close's traces, too: somebody may have set ``closed_at`` back.
    """
    period = report.period
    left = was_closed(period)
    # Read after them, so that a close meanwhile is none that was undone.
    is_closed = BillingPeriod.objects.filter(pk=period.pk, closed_at__isnull=False).exists()
    if not left and not is_closed:
        return
    if not is_closed:
        yield Difference(Kind.REOPENED, None, period.name, "open", "closed")
    frozen = {
        total.currency: (total.lines, total.exact, total.rounded)
        for total in PeriodTotal.objects.filter(period=period)
    }
    lines = {
        total.currency: (total.lines, total.amount, money.rounded(total.amount, total.currency))
        for total in report.totals
    }
    for currency in sorted(frozen.keys() | lines.keys()):
        if frozen.get(currency) != lines.get(currency):
            yield Difference(
                Kind.TOTAL_DIFFERS, None, currency,
                _said_total(frozen.get(currency)), _said_total(lines.get(currency)),
            )  # fmt: skip


def _said_total(total: tuple[int, Decimal, Decimal] | None) -> str:
    if total is None:
        return "nothing"
    lines, exact, rounded = total
    return f"{money.plain(exact)}, rounded {money.plain(rounded)}, in {lines} lines"


def _unsettled(period: BillingPeriod) -> Iterator[Difference]:
    """Sessions that ended or were suspended in the period, and billing has never heard of it."""
    for statement in (_ENDED, _SUSPENDED):
        arguments = {
            "tenant": period.tenant_id, "starts": period.starts_at, "ends": period.ends_at,
        }  # fmt: skip
        for session_id, state in _paged(statement, arguments):
            yield Difference(Kind.UNSETTLED, session_id, state, "no settlement", "a settlement")


def _astray(period: BillingPeriod) -> Iterator[Difference]:
    """Lines that are in the period without a session, or without their settlement."""
    after: UUID = NOBODY
    while page := rows(_ASTRAY, period.pk, after, PAGE):
        for entry_id, session_id, amount, currency, other in page:
            said = f"{money.plain(amount)} {currency}"
            if other is not None and other != period.pk:
                yield Difference(
                    Kind.LINE_DIFFERS, session_id, f"line {entry_id}",
                    f"{said} in period {period.pk}", f"in period {other}",
                )  # fmt: skip
            else:
                yield Difference(
                    Kind.SESSION_MISSING, session_id, f"line {entry_id}", said, "no line"
                )
        after = page[-1][0]


def _exceeded(period: BillingPeriod) -> Iterator[Difference]:
    """Charges of which more was given back than they were."""
    for charge_id, session_id, back, amount in _paged(_EXCEEDED, {"period": period.pk}):
        yield Difference(
            Kind.CREDITS_EXCEED, session_id, f"charge {charge_id}",
            f"{money.plain(back)} given back", f"{money.plain(amount)} at most",
        )  # fmt: skip


def _paged(statement: str, arguments: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """All rows, a page at a time; the first column is what they are ordered by."""
    after: UUID = NOBODY
    while page := rows(statement, {**arguments, "after": after, "page": PAGE}):
        yield from page
        after = page[-1][0]


def _cases(period: BillingPeriod, report: Report) -> Iterator[Case]:
    """Every session that has a line in the period, once, with all that is stored of it."""
    after = 0
    while page := rows(_PAGE, period.pk, after, PAGE):
        report.settlements += len(page)
        numbers: dict[UUID, int] = {}
        for _, session_id, n in page:
            numbers[session_id] = min(n, numbers.get(session_id, n))
        yield from _filled(period, numbers)
        after = page[-1][0]


def _filled(period: BillingPeriod, numbers: dict[UUID, int]) -> list[Case]:
    """The sessions of a page; ``numbers``: the first of their settlements on it.

    One is looked at with the first of its settlements in the period.
    """
    cases = {session_id: Case(session_id=session_id) for session_id in numbers}
    for settlement in Settlement.objects.filter(usage_id__in=list(numbers)).order_by("n", "id"):
        cases[settlement.usage_id].settlements.append(settlement)
    for session_id, case in list(cases.items()):
        first = next(line.n for line in case.settlements if line.period_id == period.pk)
        if first != numbers[session_id]:
            del cases[session_id]
    _fill(cases)
    return list(cases.values())


def _fill(cases: dict[UUID, Case]) -> None:
    ids = list(cases)
    for usage in UsageRecord.objects.select_related("plan").filter(pk__in=ids):
        cases[usage.pk].usage = usage
    charges: dict[UUID, Case] = {}
    entries = LedgerEntry.objects.filter(settlement__usage_id__in=ids).annotate(
        of_session=F("settlement__usage_id")
    )
    for entry in entries:
        case = cases[entry.of_session]
        case.entries[entry.settlement_id or 0] = entry
        charges[entry.pk] = case
    credits = LedgerEntry.objects.filter(charge_id__in=list(charges)).values_list("charge_id")
    for charge_id, amount in credits.annotate(sum=Sum("amount")):
        charges[charge_id].given_back[charge_id] = amount
    wasted = Waste.objects.filter(usage_id__in=ids).values_list("usage_id")
    for session_id, tokens in wasted.annotate(sum=Sum("tokens")):
        cases[session_id].waste = tokens
    sessions = StreamSession.objects.select_related("fence").defer(*set(CONTENT) - {"log_digest"})
    for session in sessions.filter(pk__in=ids):
        cases[session.pk].session = session
    for attempt in Attempt.objects.filter(session_id__in=ids).defer("evidence").order_by("number"):
        cases[attempt.session_id].attempts.append(attempt)
    waiting = OutboxMessage.objects.filter(session_id__in=ids, handled_at=None)
    for session_id in waiting.exclude(kind=OutboxMessage.Kind.AUDIT).values_list(
        "session_id", flat=True
    ):
        if session_id is not None:
            cases[session_id].is_waiting = True
    _recount(cases)


def _recount(cases: dict[UUID, Case]) -> None:
    """Count the logs again, row by row: logs may be long, so they are never held whole."""
    kept = [
        case.session for case in cases.values() if case.session is not None and not case.was_purged
    ]
    log = TokenCheckpoint.objects.among(kept).order_by("session_id", "first_seq")
    columns = ("session_id", "first_seq", "last_seq", "token_ids", "text", "digest", "terminal")
    for session_id, first, last, ids, text, digest, terminal in log.values_list(*columns).iterator(
        chunk_size=LOG_ROWS
    ):
        cases[session_id].recount.add(
            first, last, bytes(ids), bytes(text), bytes(digest), terminal is not None
        )


def _take_in(report: Report, case: Case) -> None:
    report.sessions += 1
    if case.was_purged:
        report.purged += 1
    elif case.session is not None:
        report.recounted += 1
    report.in_flux += case.is_in_flux
    report.wasted_tokens += case.waste
    if case.usage is not None:
        report.log_tokens += case.usage.log_tokens
        report.delivered_tokens += case.usage.delivered_tokens
        report.billed_tokens += case.usage.billed_tokens
        report.generated_tokens += case.usage.generated_tokens
    for attempt in case.attempts:
        told = attempt.engine_completion_tokens
        if told is not None and attempt.ended_at is not None:
            tally = report.engines.setdefault(attempt.node_name, EngineTally())
            tally.attempts += 1
            tally.told += told
            tally.counted += attempt.generated_tokens
            tally.differing += told != attempt.generated_tokens
