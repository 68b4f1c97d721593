"""The limits of one process, in its memory: where there is no Redis, or while it is away.

The rules are those of the scripts in ``runtime.limit_scripts``; a test holds them against each other.
The caller brings the time (``now``, whole microseconds), which must not run backwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from streaming.core.gcra import admits, cost
from streaming.core.levels import Level
from streaming.core.limits import Ask, Debit, Rate, Turn

RANKS = {level: rank for rank, level in enumerate(Level)}
"""Whose turn comes first within a tenant."""


@dataclass(slots=True)
class _Record:
    """What is known of a session. ``place``: in the queue, by level and turn."""

    tenant: str = ""
    user: str = ""
    slots: tuple[tuple[str, int], ...] | None = None
    """None: not known, only what was delivered."""
    tokens: tuple[tuple[str, int], ...] = ()
    seen: int | None = None
    place: tuple[int, int] | None = None
    waits_until: int = 0
    granted: bool = False
    kept_until: int = 0


class LocalLimits:
    """Buckets, slots and the queue. Leases are in microseconds, as everything here."""

    def __init__(self, *, slot_lease: int, place_lease: int, places: int, kept: int) -> None:
        self._slot_lease, self._place_lease = slot_lease, place_lease
        self._places, self._kept = places, kept
        self._buckets: dict[str, int] = {}
        self._slots: dict[str, dict[UUID, int]] = {}
        self._records: dict[UUID, _Record] = {}
        self._queues: dict[str, dict[UUID, _Record]] = {}
        self._turns: dict[str, dict[tuple[str, int], int]] = {}
        self._tidied = 0

    def __repr__(self) -> str:
        return f"<LocalLimits: {len(self._buckets)} buckets, {len(self._records)} sessions>"

    # Rates

    def admit(self, rates: Sequence[Rate], now: int) -> tuple[bool, list[int]]:
        """Take from all buckets if all admit; their levels as they are then."""
        self._tidy(now)
        levels = [self._level(rate.name, now) for rate in rates]
        if not all(
            admits(level, rate.per_minute) for rate, level in zip(rates, levels, strict=True)
        ):
            return False, levels
        for index, rate in enumerate(rates):
            if rate.amount:
                levels[index] += cost(rate.amount, rate.per_minute)
                self._buckets[rate.name] = now + levels[index]
        return True, levels

    def give_back(self, rates: Iterable[Rate], now: int) -> None:
        """What was taken was not used."""
        for rate in rates:
            level = self._level(rate.name, now) - cost(rate.amount, rate.per_minute)
            self._buckets[rate.name] = now + max(0, level)

    def debit(self, debits: Iterable[Debit], now: int) -> set[UUID]:
        """Take what was delivered, whether there is room or not; who is not known."""
        unknown = set()
        for debit in debits:
            record = self._records.get(debit.session_id)
            tokens = (record.tokens if record else ()) or debit.tokens
            if not tokens:
                if record is None:
                    unknown.add(debit.session_id)
                continue
            if record is None:
                record = self._records[debit.session_id] = _Record()
            seen = debit.base if record.seen is None else record.seen
            if debit.mark > seen:
                for name, per_minute in tokens:
                    if per_minute > 0:
                        taken = cost(debit.mark - seen, per_minute)
                        bucket = f"tokens.{name}"
                        self._buckets[bucket] = now + self._level(bucket, now) + taken
                seen = debit.mark
            record.seen, record.tokens, record.kept_until = seen, tokens, now + self._kept
        return unknown

    def _level(self, name: str, now: int) -> int:
        return max(0, self._buckets.get(name, 0) - now)

    # Slots

    def queue(self, tenant: str, asks: Sequence[Ask], now: int) -> list[Turn]:
        """Put new ones into the tenant's queue, keep the others in it, give slots to whoever is next."""
        self._tidy(now)
        for ask in asks:
            record = self._records.get(ask.session_id)
            if record is None and ask.is_new:
                record = self._enqueue(tenant, ask)
            if record is not None:
                record.waits_until = now + self._place_lease
                record.kept_until = now + self._kept
        for session_id, record in self._waiting(tenant):
            if record.waits_until < now:
                self._forget(session_id)
            elif not any(self._is_full(name, limit, now) for name, limit in record.slots or ()):
                for name, _ in record.slots or ():
                    self._slots.setdefault(name, {})[session_id] = now + self._slot_lease
                assert record.place is not None
                rank, turn = record.place
                self._turns[tenant]["", rank] = turn
                record.granted = True
                self._leave(session_id, record)
        self._make_room(tenant)
        if tenant not in self._queues:
            self._turns.pop(tenant, None)
        return [self._turn(ask.session_id) for ask in asks]

    def renew(self, asks: Iterable[Ask], now: int) -> set[UUID]:
        """Keep what was granted; who is not known. An ``Ask`` without slots and tokens: as it began."""
        unknown = set()
        for ask in asks:
            record = self._records.get(ask.session_id)
            says = bool(ask.slots or ask.tokens)
            if record is None and not says:
                unknown.add(ask.session_id)
                continue
            if record is None:
                record = self._records[ask.session_id] = _Record()
            if record.slots is None and says:
                record.slots, record.tokens, record.granted = ask.slots, ask.tokens, True
            record.kept_until = now + self._kept
            for name, _ in record.slots or ():
                self._slots.setdefault(name, {})[ask.session_id] = now + self._slot_lease
        return unknown

    def release(self, session_ids: Iterable[tuple[UUID, bool]]) -> None:
        """Free the slots of these, or their places in the queue; and forget them, where that is said."""
        for session_id, forget in session_ids:
            record = self._records.get(session_id)
            if record is None:
                continue
            for name, _ in record.slots or ():
                self._slots.get(name, {}).pop(session_id, None)
            self._leave(session_id, record)
            if forget:
                del self._records[session_id]

    def _enqueue(self, tenant: str, ask: Ask) -> _Record:
        rank = RANKS[ask.level]
        turns = self._turns.setdefault(tenant, {})
        turn = max(turns.get(("", rank), 0), turns.get((ask.user, rank), 0) + 1)
        turns[ask.user, rank] = turn
        record = _Record(tenant, ask.user, ask.slots, ask.tokens, 0, (rank, turn))
        self._records[ask.session_id] = record
        self._queues.setdefault(tenant, {})[ask.session_id] = record
        return record

    def _make_room(self, tenant: str) -> None:
        """Who is too many for the queue: of those that wait the most, the last one."""
        while len(waiting := self._waiting(tenant)) > self._places:
            counts = Counter(record.user for _, record in waiting)
            most = max(counts.values())
            self._forget([key for key, record in waiting if counts[record.user] == most][-1])

    def _forget(self, session_id: UUID) -> None:
        self._leave(session_id, self._records.pop(session_id))

    def _leave(self, session_id: UUID, record: _Record) -> None:
        """The queue, if it is in it."""
        record.place = None
        queue = self._queues.get(record.tenant, {})
        queue.pop(session_id, None)
        if not queue:
            self._queues.pop(record.tenant, None)

    def _waiting(self, tenant: str) -> list[tuple[UUID, _Record]]:
        queue = self._queues.get(tenant, {})
        return sorted(queue.items(), key=lambda pair: (pair[1].place, str(pair[0])))

    def _is_full(self, name: str, limit: int, now: int) -> bool:
        leases = self._slots.get(name, {})
        for session_id in [key for key, until in leases.items() if until <= now]:
            del leases[session_id]
        return len(leases) >= limit

    def _turn(self, session_id: UUID) -> Turn:
        record = self._records.get(session_id)
        if record is None:
            return Turn.GONE
        return Turn.GRANTED if record.granted else Turn.WAITING

    def _tidy(self, now: int) -> None:
        """Once a minute: forget what has expired."""
        if now - self._tidied < 60_000_000:
            return
        self._tidied = now
        self._buckets = {name: at for name, at in self._buckets.items() if at > now}
        self._records = {
            key: record for key, record in self._records.items() if record.kept_until > now
        }
        for name, leases in list(self._slots.items()):
            if all(until <= now for until in leases.values()):
                del self._slots[name]
