"""What this process knows of limits, and its share in keeping them.

Rates and slots stand in Redis, where all processes count together. A stream under way waits for
none of it: what was delivered is taken from its buckets twice a second, in one call for all
sessions, and slots are leases that are renewed in another. Both say how things are, not what has changed,
so that a call whose fate is unknown may be made again, and any process may say it after a takeover.

While Redis is away each process keeps the limits by itself, as far as it sees; what was delivered
meanwhile is told to Redis when it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from redis.exceptions import RedisError

from streaming.conf import conf
from streaming.core.levels import Level
from streaming.core.limits import Ask, Debit, Rate, Turn
from streaming.core.local_limits import LocalLimits
from streaming.errors import SessionLost
from streaming.metrics.catalogue import LIMITS_ALONE, QUEUE_LENGTH
from streaming.runtime.limit_store import RedisLimits
from streaming.runtime.live import LiveSession

logger = logging.getLogger(__name__)

SLOT_LEASE_SECONDS = 6.0
"""How long the slots of a process that was killed stay taken, unless its sessions are taken over."""
PLACE_LEASE_SECONDS = 5.0
"""How long those who wait in a process that was killed keep their place in the queue."""
RENEW_SECONDS = 1.5
TELL_SECONDS = 0.5
LOOK_SECONDS = 0.1
"""How long a free slot may stand free although somebody waits for it."""
RETRY_SECONDS = 1.0
LATE_HOURS = 1
"""After the resume window: evidence of delivery that comes later is taken from nobody's tokens."""
MOST_UNTOLD = 50_000

T = TypeVar("T")

AWAY = (RedisError, OSError, TimeoutError)


@dataclass(slots=True)
class _Held:
    """A session of this process that counts against something. ``told``: tokens debited so far, as
    far as Redis has confirmed. ``ask`` is without scopes where another process began the session."""

    ask: Ask
    told: int = 0


@dataclass(slots=True)
class _Waiter:
    tenant: str
    ask: Ask
    turn: asyncio.Future[Turn]
    epoch: int
    """Of the store that it is in the queue of."""


class Allowances:
    """Of one gateway process. ``sessions`` are those that it owns; an empty ``redis_url``: it is alone."""

    def __init__(self, sessions: Mapping[UUID, LiveSession], redis_url: str) -> None:
        self._sessions = sessions
        self._terms = {
            "slot_lease": int(SLOT_LEASE_SECONDS * 1e6),
            "place_lease": int(PLACE_LEASE_SECONDS * 1e6),
            "places": conf().queue_length,
        }
        kept = int(conf().max_answer_seconds + conf().resume_window + LATE_HOURS * 3600)
        self._kept = kept
        self._redis = RedisLimits(redis_url, **self._terms, kept=kept) if redis_url else None
        self._local = self._new_local()
        self._is_away = False
        self._epoch = 0
        self._held: dict[UUID, _Held] = {}
        self._debits: dict[UUID, Debit] = {}
        self._released: dict[UUID, bool] = {}
        self._waiters: dict[UUID, _Waiter] = {}
        self._wanted = asyncio.Event()
        """Somebody waits for a slot, or has given one up."""
        self._renewed_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        where = "alone" if self._redis is None or self._is_away else "in Redis"
        return f"<Allowances {where}: {len(self._held)} sessions, {len(self._waiters)} waiting>"

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._tell_forever(), name="allowances"),
            asyncio.create_task(self._queue_forever(), name="queue"),
        ]

    async def stop(self) -> None:
        """Tell what there is to tell, and give everything up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session_id in self._held:
            self._released[session_id] = False
        if self._redis is not None:
            try:
                await self._tell()
            except AWAY as exc:
                logger.info("the last deliveries were not counted: %s", exc)
            await self._redis.close()

    # Rates

    async def admit(self, rates: Sequence[Rate]) -> tuple[bool, list[int]]:
        """Take from all buckets if all admit; their levels then (µs, ``core.gcra``)."""
        return await self._ask(
            lambda store: store.admit(rates), lambda: self._local.admit(rates, self._now())
        )

    async def give_back(self, rates: Sequence[Rate]) -> None:
        """What was taken was not used."""
        await self._ask(
            lambda store: store.give_back(rates), lambda: self._local.give_back(rates, self._now())
        )

    # Slots

    async def begin(self, tenant: str, ask: Ask, seconds: float) -> Turn:
        """Wait up to ``seconds`` for the slots that a session asks for.

        Granted, they are kept until the session ends, is suspended, or ``drop`` is called; call
        that too where anything else came of it.
        """
        if self._room(ask) == 0:
            return Turn.GONE
        if not ask.slots:
            self._held[ask.session_id] = _Held(ask)
            await self._ask(
                lambda store: store.renew([ask]), lambda: self._local.renew([ask], self._now())
            )
            return Turn.GRANTED
        epoch = self._epoch
        (turn,) = await self._queue(tenant, [ask])
        if turn is Turn.WAITING and seconds > 0:
            turn = await self._wait(tenant, ask, epoch, seconds)
        if turn is Turn.GRANTED:
            self._held[ask.session_id] = _Held(ask)
        return turn

    def drop(self, session_id: UUID) -> None:
        """The session does not begin after all."""
        self._held.pop(session_id, None)
        self._released[session_id] = True
        self._wanted.set()

    @staticmethod
    def _room(ask: Ask) -> int:
        """How many may stream at once, where that is limited."""
        return min((limit for _, limit in ask.slots), default=1)

    async def _wait(self, tenant: str, ask: Ask, epoch: int, seconds: float) -> Turn:
        turn: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._waiters[ask.session_id] = _Waiter(tenant, ask, turn, epoch)
        QUEUE_LENGTH.value = len(self._waiters)
        self._wanted.set()
        try:
            async with asyncio.timeout(seconds):
                return await turn
        except TimeoutError:
            return Turn.WAITING
        finally:
            del self._waiters[ask.session_id]
            QUEUE_LENGTH.value = len(self._waiters)

    def send_all_away(self) -> None:
        """This process takes no new sessions any more: those who wait are told so."""
        for waiter in self._waiters.values():
            if not waiter.turn.done():
                waiter.turn.set_result(Turn.GONE)

    # Sessions

    def taken_over(self, session: LiveSession) -> None:
        """This process owns a session now that has begun elsewhere, or was suspended."""
        self._released.pop(session.id, None)
        ask = Ask(session.id, "", Level.STANDARD, (), (), is_new=False)
        self._held[session.id] = _Held(ask, tokens_delivered(session))
        self._renewed_at = 0.0

    def closed(self, session: LiveSession) -> None:
        """Its runner has ended."""
        held = self._held.pop(session.id, None)
        if held is None:
            return
        self._note(held, tokens_delivered(session))
        if not isinstance(session.log.lost, SessionLost):  # else another process keeps its slots
            self._released[session.id] = False
            self._wanted.set()

    def delivered(self, session_id: UUID, former: int, mark: int) -> None:
        """The stored mark of a session's delivery has moved, here or elsewhere."""
        if mark <= former:
            return
        held = self._held.get(session_id)
        if held is not None:
            self._note(held, mark)
        elif session_id not in self._sessions:  # else it is ours, and counts against nothing
            self._debit(Debit(session_id, former, mark))

    def _note(self, held: _Held, mark: int) -> None:
        if mark > held.told:
            ask = held.ask
            self._debit(Debit(ask.session_id, held.told, mark, ask.tokens))

    def _debit(self, debit: Debit) -> None:
        known = self._debits.get(debit.session_id)
        if known is not None:
            debit = replace(known, mark=max(known.mark, debit.mark))
        self._debits[debit.session_id] = debit

    # Telling

    async def _tell_forever(self) -> None:
        while True:
            await asyncio.sleep(RETRY_SECONDS if self._is_away else TELL_SECONDS)
            for session in self._sessions.values():
                if (held := self._held.get(session.id)) is not None:
                    self._note(held, tokens_delivered(session))
            try:
                if self._is_away:
                    await self._come_back()
                await self._tell()
            except AWAY as exc:
                self._lose(exc)
            except Exception:  # what is not told now is told later; nothing else depends on it
                logger.exception("deliveries were not counted")

    async def _tell(self) -> None:
        """Debits, slots given up, slots kept. Raises what means that Redis is away."""
        now = asyncio.get_running_loop().time()
        debits = list(self._debits.values())
        released = list(self._released.items())
        is_due = now - self._renewed_at >= RENEW_SECONDS
        asks = [held.ask for held in self._held.values()] if is_due else []
        store = None if self._is_away else self._redis
        at = self._now()
        unknown: set[UUID] = set()
        if debits:
            unknown |= (
                await store.debit(debits) if store is not None else self._local.debit(debits, at)
            )
            self._told(debits, confirmed=not self._is_away)
        if released:
            if store is not None:
                await store.release(released)
            else:  # what Redis does not hear of it forgets by itself
                self._local.release(released)
            for session_id, forget in released:
                if self._released.get(session_id) is forget:
                    del self._released[session_id]
        if asks:
            self._renewed_at = now
            unknown |= await store.renew(asks) if store is not None else self._local.renew(asks, at)
        if not self._is_away:
            for session_id in unknown:  # it counts against nothing, or nobody knows any more what
                held = self._held.get(session_id)
                if held is not None and not held.ask.slots and not held.ask.tokens:
                    del self._held[session_id]

    def _told(self, debits: Sequence[Debit], *, confirmed: bool) -> None:
        if not confirmed:  # Redis will hear of them; but not of more than there is room for
            for session_id in list(self._debits)[: max(0, len(self._debits) - MOST_UNTOLD)]:
                del self._debits[session_id]
            return
        for debit in debits:
            if self._debits.get(debit.session_id) == debit:
                del self._debits[debit.session_id]
            elif (newer := self._debits.get(debit.session_id)) is not None:
                self._debits[debit.session_id] = replace(newer, base=debit.mark)
            if (held := self._held.get(debit.session_id)) is not None:
                held.told = max(held.told, debit.mark)

    async def _queue_forever(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                if self._released:
                    await self._tell()
                await self._look()
            except AWAY as exc:
                self._lose(exc)
            except Exception:  # who waits is told by its own clock
                logger.exception("the queue was not looked at")
            if self._waiters:
                self._wanted.set()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        """Whose turn is it?"""
        tenants: dict[str, list[_Waiter]] = {}
        for waiter in self._waiters.values():
            tenants.setdefault(waiter.tenant, []).append(waiter)
        for tenant, waiters in tenants.items():
            epoch = self._epoch
            asks = [replace(waiter.ask, is_new=waiter.epoch != epoch) for waiter in waiters]
            turns = await self._queue(tenant, asks)
            for waiter, turn in zip(waiters, turns, strict=True):
                waiter.epoch = epoch
                if turn is not Turn.WAITING and not waiter.turn.done():
                    waiter.turn.set_result(turn)

    async def _queue(self, tenant: str, asks: Sequence[Ask]) -> list[Turn]:
        return await self._ask(
            lambda store: store.queue(tenant, asks),
            lambda: self._local.queue(tenant, asks, self._now()),
        )

    # Redis, or this process alone

    async def _ask(
        self, shared: Callable[[RedisLimits], Awaitable[T]], alone: Callable[[], T]
    ) -> T:
        if self._redis is not None and not self._is_away:
            try:
                return await shared(self._redis)
            except AWAY as exc:
                self._lose(exc)
        return alone()

    def _lose(self, exc: Exception) -> None:
        if self._is_away or self._redis is None:
            return
        self._is_away = True
        self._epoch += 1
        LIMITS_ALONE.value = 1
        logger.warning("Redis is away, limits are kept by each process alone: %s", exc)
        self._local = self._new_local()
        self._local.renew([held.ask for held in self._held.values()], self._now())

    async def _come_back(self) -> None:
        """Raises what means that Redis is still away."""
        assert self._redis is not None
        await self._redis.connect_again()
        self._is_away = False
        self._epoch += 1
        self._renewed_at = 0.0
        LIMITS_ALONE.value = 0
        logger.warning("Redis is back, limits are shared again")

    def _new_local(self) -> LocalLimits:
        return LocalLimits(**self._terms, kept=self._kept * 1_000_000)

    @staticmethod
    def _now() -> int:
        return int(asyncio.get_running_loop().time() * 1e6)


def tokens_delivered(session: LiveSession) -> int:
    """Those that there is evidence for; the terminal record is none."""
    log = session.log
    return min(log.marks.delivered, log.last_seq - log.closed)
