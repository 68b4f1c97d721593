"""Where a session's next attempt may go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streaming.conf import conf
from streaming.core.prefix import prefix_key
from streaming.errors import NoHealthyNode, UnsupportedParameter
from streaming.fleet.continuations import Booking, Continuations
from streaming.fleet.nodes import Fleet, Node
from streaming.fleet.routing import Wanted
from streaming.runtime.live import LiveSession

# The longest memory of nodes on which an answer has failed.
REMEMBERED = 8
# Where an answer has failed more than once it does not go again at once, if there is no other node:
# an engine that comes to itself would otherwise use up all its attempts within milliseconds.
REST, LONGEST_REST = 0.1, 1.0


class Placement:
    """Finds nodes for one session, and remembers where it has failed."""

    def __init__(self, session: LiveSession, fleet: Fleet, continuations: Continuations) -> None:
        self._session = session
        self._fleet = fleet
        self._continuations = continuations
        self._prefix = prefix_key(session.request.messages)
        request = session.request
        self._asked = set(request.sampling.extra)
        if request.budget.min_tokens:
            self._asked.add("min_tokens")
        self._failed: list[Node] = []
        self._rested_at: dict[Node, float] = {}
        """Loop time before which it does not go there again."""

    def note_failure(self, node: Node) -> None:
        self._failed = [*self._failed, node][-REMEMBERED:]
        if (again := self._failed.count(node) - 1) > 0:
            rest = min(REST * 2**again, LONGEST_REST)
            self._rested_at[node] = asyncio.get_running_loop().time() + rest

    async def next(self, waiting_since: float, *, is_continuation: bool) -> Booking:
        """A place for the next attempt, waiting for it if need be.

        Raises ``NoHealthyNode`` when for ``NODE_WAIT_SECONDS`` there was none, or
        ``UnsupportedParameter``.
        """
        wait = conf().node_wait_seconds
        try:
            booking = await self._continuations.place(
                lambda: self._wanted(is_continuation=is_continuation),
                self._session.principal.tenant_id,
                waiting_since,
                wait,
                self._session.principal.level,
            )
        except TimeoutError:
            raise NoHealthyNode(
                f"No node for {self._session.model} could take the request within {wait:g} s."
            ) from None
        self._refuse_unsupported(booking)
        return booking

    def beside(self, *nodes: Node) -> Booking | None:
        """A place besides ``nodes``, where no request waits; None: there is none now."""
        now = asyncio.get_running_loop().time()
        busy = [other for other in self._fleet.nodes.values() if other.would_queue(now)]
        return self._place_now([*nodes, *busy])

    def away_from(self, node: Node) -> Booking | None:
        """A place elsewhere, for an answer that is well where it is; None: there is none now."""
        return None if self._continuations.waiting else self._place_now([node])

    def _place_now(self, besides: Sequence[Node]) -> Booking | None:
        wanted = self._wanted(is_continuation=True, besides=besides)
        return self._continuations.place_now(wanted, self._session.principal.tenant_id)

    def is_unfit(self, node: Node) -> bool:
        """Whether ``node`` lacks a parameter or the room for this answer, while another has it."""
        return node in self._unfit()

    def _wanted(self, *, is_continuation: bool, besides: Sequence[Node] = ()) -> Wanted:
        return Wanted(
            model=self._session.model,
            failed=self._failed,
            unfit=[*self._unfit(), *self._resting(), *besides],
            is_continuation=is_continuation,
            prefix=self._prefix,
            last_resort=is_continuation and not besides,
        )

    def _resting(self) -> list[Node]:
        if not self._rested_at:
            return []
        now = asyncio.get_running_loop().time()
        return [node for node, until in self._rested_at.items() if now < until]

    def _unfit(self) -> list[Node]:
        model = self._session.model
        size = (self._session.prompt_tokens or 0) + self._session.log.last_seq
        unfit, fit = [], False
        for node in self._fleet.nodes.values():
            if model in node.models:
                context = node.models[model]
                if self._unsupported(node) or (context is not None and context <= size):
                    unfit.append(node)
                else:
                    fit = True
        return unfit if fit else []

    def _unsupported(self, node: Node) -> set[str]:
        """The parameters of this request that the node's engine does not have."""
        return self._asked & node.dialect.unsupported

    def _refuse_unsupported(self, booking: Booking) -> None:
        for name in sorted(self._unsupported(booking.node)):
            booking.end()
            raise UnsupportedParameter(
                f"The engines that serve {self._session.model} do not support {name}.", param=name
            )
