"""Where attempts go, and when: a node that dies must not drown those that are left.

A continuation has its whole prefix to compute before its first token. Each node takes a bounded
number of them at once; the others wait: those of a better level first, within a level no tenant
before one that has fewer under way, and of a tenant the longest-waiting first. Who waits rises by a
level every ``RISE_SECONDS``, so that nobody waits for ever. New sessions have nothing to compute again and wait for a node only.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from streaming.conf import conf
from streaming.core import log_fields
from streaming.core.levels import Level
from streaming.fleet.nodes import Fleet, Health, Node
from streaming.fleet.routing import Wanted, choose

# A node that asked to be left alone, or whose probe is late, announces nothing when the time is over.
LOOK_SECONDS = 0.1
RISE_SECONDS = 4.0


class Booking:
    """A place for one attempt, from the moment it is chosen: whoever chooses next must see it."""

    __slots__ = ("_ended", "_fleet", "_release", "node")

    def __init__(self, fleet: Fleet, node: Node, release: Callable[[], None] | None = None) -> None:
        self.node = node
        self._fleet = fleet
        self._release = release
        self._ended = False
        fleet.attempt_began(node)

    def release(self) -> None:
        """It has its first token: let the next continuation begin. Does nothing the second time."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def end(self) -> None:
        """The attempt is over, or was not made. Does nothing the second time."""
        if not self._ended:
            self._ended = True
            self._fleet.attempt_ended(self.node)
            self.release()


class _Kind(NamedTuple):
    """Those of a kind are served in the order in which they have waited."""

    model: str
    is_continuation: bool
    tenant: int
    level: Level


@dataclass(slots=True, eq=False)
class _Waiter:
    """``hopeless_at``: when it is told that there is no node, if none turns up before."""

    wanted: Callable[[], Wanted]
    kind: _Kind
    since: float
    patience: float
    hopeless_at: float
    placed: asyncio.Future[Booking]

    def rank(self, now: float) -> int:
        """Of its level, and better the longer it waits."""
        return max(0, self.kind.level.rank - int((now - self.since) / RISE_SECONDS))


class Continuations:
    """One per process: it takes its share of each node's limit."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._queues: dict[_Kind, list[_Waiter]] = {}
        """Who waits, by what sets them apart; of each, the longest-waiting first. None is empty."""
        self._under_way: Counter[int] = Counter()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Continuations {self._under_way.total()} under way, {self.waiting} waiting>"

    @property
    def waiting(self) -> int:
        """How many streams wait for a node."""
        return sum(map(len, self._queues.values()))

    async def place(
        self,
        wanted: Callable[[], Wanted],
        tenant: int,
        since: float,
        patience: float,
        level: Level = Level.STANDARD,
    ) -> Booking:
        """A place for one attempt. ``wanted`` is asked again at each look: nodes come and go.

        ``since``: loop time from which it counts as waiting. Raises ``TimeoutError`` when for
        ``patience`` seconds there was no node that would have taken it, had it had room.
        """
        first = wanted()
        booking = None
        if not first.is_continuation or not self._queues:
            booking = self.place_now(first, tenant)
        if booking is not None:
            return booking
        loop = asyncio.get_running_loop()
        waiter = _Waiter(
            wanted, _Kind(first.model, first.is_continuation, tenant, level), since,
            patience, loop.time() + patience, loop.create_future(),
        )  # fmt: skip
        insort(self._queues.setdefault(waiter.kind, []), waiter, key=_since)
        if self._task is None or self._task.done():
            self._task = loop.create_task(
                self._look_forever(), name="continuations", context=log_fields.nobody()
            )
        try:
            return await waiter.placed
        except asyncio.CancelledError:
            if waiter.placed.done() and not waiter.placed.cancelled():
                waiter.placed.result().end()  # placed in the moment of being cancelled
            raise
        finally:
            self._remove(waiter)

    def place_now(self, wanted: Wanted, tenant: int) -> Booking | None:
        """A place without waiting, before all who wait; None if there is none."""
        now = asyncio.get_running_loop().time()
        if not wanted.is_continuation:
            node = choose(self._fleet.nodes.values(), wanted, now)
            return Booking(self._fleet, node) if node is not None else None
        share = self._share()
        full = [node for node in self._fleet.nodes.values() if node.continuing >= share]
        node = choose(self._fleet.nodes.values(), wanted, now, besides=full)
        return self._book(node, tenant) if node is not None else None

    def may_go_elsewhere(self, model: str, node: Node) -> bool:
        """Whether some other node than ``node`` might take a continuation now. Cheap: streams that
        are silent ask again and again."""
        share = self._share()
        return any(
            other is not node
            and other.health is Health.UP
            and model in other.models
            and other.continuing < share
            for other in self._fleet.nodes.values()
        )

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _share(self) -> int:
        """How many continuations of this process a node takes at once."""
        return max(1, conf().max_continuations // max(1, self._fleet.gateways))

    def _models_with_room(self) -> set[str]:
        """The models of which some node would take one more continuation now."""
        share = self._share()
        return {
            model
            for node in self._fleet.nodes.values()
            if node.health is Health.UP and node.continuing < share
            for model in node.models
        }

    def _book(self, node: Node, tenant: int) -> Booking:
        node.continuing += 1
        self._under_way[tenant] += 1

        def release() -> None:
            node.continuing -= 1
            self._under_way[tenant] -= 1
            self._place_waiting()

        return Booking(self._fleet, node, release)

    async def _look_forever(self) -> None:
        """Look whenever the fleet has changed, and now and then besides, while anybody waits."""
        while self._queues:
            self._place_waiting()
            self._give_up_hopeless()
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._fleet.wait_for_change()
            except TimeoutError:
                pass

    def _give_up_hopeless(self) -> None:
        now = asyncio.get_running_loop().time()
        for waiter in [waiter for queue in self._queues.values() for waiter in queue]:
            if waiter.placed.done():
                continue
            if choose(self._fleet.nodes.values(), waiter.wanted(), now) is not None:
                waiter.hopeless_at = now + waiter.patience
            elif now >= waiter.hopeless_at:
                waiter.placed.set_exception(TimeoutError())

    def _place_waiting(self) -> None:
        while self._queues and any(map(self._place, self._in_order())):
            pass  # each one that is placed may change who is next

    def _place(self, waiter: _Waiter) -> bool:
        booking = self.place_now(waiter.wanted(), waiter.kind.tenant)
        if booking is None:
            return False
        self._remove(waiter)
        waiter.placed.set_result(booking)
        return True

    def _remove(self, waiter: _Waiter) -> None:
        """It waits no longer. Does nothing the second time."""
        queue = self._queues.get(waiter.kind, [])
        if waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[waiter.kind]

    def _in_order(self) -> Iterator[_Waiter]:
        """Who is next: of the best level, of the tenant with the fewest under way there, the one
        that has waited longest.

        A place becomes free with each first token, so no more of them are compared than need be.
        """
        now = asyncio.get_running_loop().time()
        models = self._models_with_room()
        heads = [
            (self._urgency(queue[0], now), number, 0, queue)
            for number, (kind, queue) in enumerate(self._queues.items())
            if kind.model in models or not kind.is_continuation
        ]
        heapify(heads)
        while heads:
            _, number, at, queue = heads[0]
            if not queue[at].placed.done():
                yield queue[at]
            if at + 1 < len(queue):
                urgency = self._urgency(queue[at + 1], now)
                heapreplace(heads, (urgency, number, at + 1, queue))
            else:
                heappop(heads)

    def _urgency(self, waiter: _Waiter, now: float) -> tuple[int, int, float]:
        """Less is sooner; of one queue it grows from its first to its last."""
        return waiter.rank(now), self._under_way[waiter.kind.tenant], waiter.since


def _since(waiter: _Waiter) -> float:
    return waiter.since
