"""What has to be true of one session: its lines, its usage record and its log say the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from uuid import UUID

from billing.core import money
from billing.core.differences import Difference, Kind
from billing.core.policy import billable
from billing.models import LedgerEntry, Settlement, UsageRecord
from billing.services.charging import carried, owed, policy_of, price_of
from billing.services.figures import Figures, figures
from streaming.core.digest import RunningDigest
from streaming.models import Attempt, StreamSession

DIGEST_BYTES = 16
ID_BYTES = 4


class Recount:
    """A log that is counted again, row by row: how many tokens there are, and whether they are
    those that were written."""

    __slots__ = ("_digest", "_last_seq", "altered", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.altered: str | None = None
        """Where the log is first not what was written; None: nowhere."""
        self._last_seq = 0
        self._digest = RunningDigest()

    def add(
        self, first_seq: int, last_seq: int, ids: bytes, text: bytes, digest: bytes, closes: bool
    ) -> None:
        """The next row of the log."""
        count = len(ids) // ID_BYTES
        self.tokens += count
        self._digest.update(ids, text)
        whole = first_seq == self._last_seq + 1 and last_seq == first_seq - 1 + count + closes
        self._last_seq = last_seq
        if self.altered is None and not (whole and self._digest.digest() == digest):
            self.altered = f"tokens {first_seq}–{last_seq}"


@dataclass(slots=True, kw_only=True)
class Case:
    """All that is stored of one session, over all periods."""

    session_id: UUID
    usage: UsageRecord | None = None
    settlements: list[Settlement] = field(default_factory=list)
    """By their number."""
    entries: dict[int, LedgerEntry] = field(default_factory=dict)
    """The ledger's lines, by settlement."""
    given_back: dict[UUID, Decimal] = field(default_factory=dict)
    """By charge: all of its credits, as they were booked (negative)."""
    session: StreamSession | None = None
    attempts: list[Attempt] = field(default_factory=list)
    recount: Recount = field(default_factory=Recount)
    waste: int = 0
    is_waiting: bool = False
    """Whether the outbox has something of it that is not settled yet."""

    @property
    def was_purged(self) -> bool:
        return self.session is not None and self.session.purged_at is not None

    @property
    def is_in_flux(self) -> bool:
        """Whether it goes on, or is yet to be settled: what was billed is not all of it."""
        if self.session is None:
            return False
        ended = self.session.ended_at is not None
        return self.is_waiting or not (ended or self.session.state == "suspended")

    def differs(self, kind: Kind, subject: str, found: object, expected: object) -> Difference:
        return Difference(kind, self.session_id, subject, _said(found), _said(expected))


def differences_of(case: Case) -> Iterator[Difference]:
    """Everything that is not as it has to be."""
    yield from _lines(case)
    yield from _usage(case)
    if case.session is None:
        yield case.differs(Kind.SESSION_MISSING, "session", "not there", "there")
        return
    fence = getattr(case.session, "fence", None)
    if fence is None:
        yield case.differs(Kind.SESSION_MISSING, "fence", "not there", "there")
        return
    now = figures(case.session, fence, case.attempts)
    yield from _log(case, now)
    if case.usage is not None:
        yield from _delivery(case, case.usage, now)
    yield from _engines(case)


def _lines(case: Case) -> Iterator[Difference]:
    """Ledger = settlements, line by line; and each follows from what is frozen in it."""
    billed = 0
    spared = Decimal(0)
    numbers = {settlement.pk: settlement for settlement in case.settlements}
    for number, settlement in enumerate(case.settlements, 1):
        name = f"settlement {settlement.n}"
        if (settlement.n, settlement.from_tokens) != (number, billed):
            yield case.differs(
                Kind.CHAIN_BROKEN,
                name,
                f"number {settlement.n} from token {settlement.from_tokens}",
                f"number {number} from token {billed}",
            )
        billed = settlement.to_tokens
        corrected = numbers.get(settlement.corrects_id or 0)
        charge = None if corrected is None else case.entries.get(corrected.pk)
        price = price_of(settlement)
        due = owed(price, spared) if settlement.corrects_id is None else price
        if _is_priced(settlement, charge, due, case):
            spared = money.total([spared, carried([settlement])])
        else:
            yield case.differs(Kind.AMOUNT_WRONG, name, _money(settlement), f"{due} by its prices")
        entry = case.entries.get(settlement.pk)
        if entry is None:
            yield case.differs(Kind.LINE_MISSING, name, "no line", _money(settlement))
        elif _booked(entry) != _settled(settlement):
            yield case.differs(
                Kind.LINE_DIFFERS, f"line {entry.pk}", _booked(entry), _settled(settlement)
            )


def _is_priced(
    settlement: Settlement, charge: LedgerEntry | None, due: Decimal, case: Case
) -> bool:
    if settlement.amount == due:
        return True
    # Less is given back where a person has given back the rest before.
    if charge is None or not due <= settlement.amount <= 0:
        return False
    return money.total([charge.amount, case.given_back.get(charge.pk, Decimal(0))]) == 0


def _usage(case: Case) -> Iterator[Difference]:
    """The usage record is the sum of its settlements."""
    usage, lines = case.usage, case.settlements
    if usage is None:
        yield case.differs(Kind.USAGE_DIFFERS, "usage record", "not there", "there")
        return
    for name, noted, summed in (
        ("settlements", usage.settlements, len(lines)),
        ("billed tokens", usage.billed_tokens, sum(line.output_tokens for line in lines)),
        ("prompt tokens", usage.prompt_tokens, sum(line.prompt_tokens for line in lines)),
        ("cached tokens", usage.cached_tokens, sum(line.cached_tokens for line in lines)),
        ("amount", usage.amount, money.total(line.amount for line in lines)),
    ):
        if noted != summed:
            yield case.differs(Kind.USAGE_DIFFERS, name, noted, summed)
    for line in lines:
        if line.currency != usage.currency:
            yield case.differs(
                Kind.USAGE_DIFFERS, f"currency of {line.n}", line.currency, usage.currency
            )


def _log(case: Case, now: Figures) -> Iterator[Difference]:
    """The log is whole and unaltered; of a purged one, what is left of it agrees."""
    session = now.session
    if case.was_purged:
        counted = session.completion_tokens
        digest = session.log_digest
        if digest is None or len(digest) != DIGEST_BYTES:
            yield case.differs(Kind.LOG_DIGEST, "purged log", "no digest", "its digest")
        yield from _ranges(case, counted)
    else:
        counted = case.recount.tokens
        if case.recount.altered is not None:
            yield case.differs(Kind.LOG_DIGEST, case.recount.altered, "altered", "as written")
    for name, noted, is_exact in (
        ("tokens by the fence", now.log, True),
        ("tokens by the session", session.completion_tokens, not case.is_in_flux),
        (
            "tokens as settled",
            counted if case.usage is None else case.usage.log_tokens,
            not case.is_in_flux,
        ),
    ):
        if noted != counted if is_exact else noted > counted:
            yield case.differs(Kind.LOG_COUNT, name, noted, counted)


def _ranges(case: Case, counted: int) -> Iterator[Difference]:
    """Attempts that were written down have produced different tokens of 1..``counted``."""
    ranges = sorted(
        (attempt.first_seq, attempt.last_seq)
        for attempt in case.attempts
        if attempt.first_seq is not None and attempt.last_seq is not None
    )
    if ranges and (ranges[0][0] < 1 or ranges[-1][1] > counted):
        said = f"{ranges[0][0]}–{ranges[-1][1]}"
        yield case.differs(Kind.LOG_COUNT, "tokens by attempts", said, f"1–{counted}")
    for one, other in itertools.pairwise(ranges):
        if other[0] <= one[1]:
            said = f"{other[0]}–{other[1]}"
            yield case.differs(Kind.LOG_COUNT, "tokens by attempts", said, f"after {one[1]}")


def _delivery(case: Case, usage: UsageRecord, now: Figures) -> Iterator[Difference]:
    """Settled = delivered, by the evidence that there is; and nothing generated is unaccounted for."""
    made = usage.log_tokens + usage.discarded_tokens + usage.regenerated_tokens
    if usage.generated_tokens != made:
        yield case.differs(Kind.WASTE_DIFFERS, "generated", usage.generated_tokens, made)
    if usage.delivered_tokens > now.log:
        limit = f"{now.log} at most"
        yield case.differs(Kind.DELIVERED_DIFFERS, "delivered", usage.delivered_tokens, limit)
    if case.is_in_flux:
        return
    if usage.delivered_tokens != now.delivered:
        yield case.differs(
            Kind.DELIVERED_DIFFERS, "delivered", usage.delivered_tokens, now.delivered
        )
    owed = billable(policy_of(usage.plan), now.progress)
    if usage.billed_tokens != owed:
        yield case.differs(Kind.BILLED_DIFFERS, "billed tokens", usage.billed_tokens, owed)
    prompt = now.prompt if owed else 0
    if usage.prompt_tokens != prompt:
        yield case.differs(Kind.BILLED_DIFFERS, "prompt tokens", usage.prompt_tokens, prompt)
    if usage.generated_tokens != now.generated:
        yield case.differs(Kind.WASTE_DIFFERS, "generated", usage.generated_tokens, now.generated)
    if now.ended and usage.delivered_tokens + case.waste != usage.generated_tokens:
        yield case.differs(
            Kind.WASTE_DIFFERS,
            "delivered + waste",
            f"{usage.delivered_tokens} + {case.waste}",
            usage.generated_tokens,
        )


def _engines(case: Case) -> Iterator[Difference]:
    """What engines say of an attempt that they told of is what was counted: delivered or waste."""
    for attempt in case.attempts:
        told = attempt.engine_completion_tokens
        if told is not None and attempt.ended_at and told != attempt.generated_tokens:
            yield case.differs(
                Kind.ENGINE_USAGE,
                f"attempt {attempt.number} on {attempt.node_name}",
                attempt.generated_tokens,
                told,
            )


def _money(row: Settlement | LedgerEntry) -> str:
    return f"{money.plain(row.amount)} {row.currency}"


def _booked(entry: LedgerEntry) -> str:
    return f"{_money(entry)} in period {entry.period_id} for {entry.session_id}"


def _settled(settlement: Settlement) -> str:
    return f"{_money(settlement)} in period {settlement.period_id} for {settlement.usage_id}"


def _said(figure: object) -> str:
    return money.plain(figure) if isinstance(figure, Decimal) else str(figure)
