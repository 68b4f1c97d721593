"""Moves: streams leave a node that is being emptied a few at a time, so that each one's pause is short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streaming.fleet.continuations import Booking
from streaming.fleet.nodes import Node

AT_ONCE = 4
MOVE_SECONDS = 1.0
"""How long a move that is slow may keep others from beginning."""
NOWHERE_SECONDS = 0.25
"""How long it is not asked again after there was no place for a model."""


class Moves:
    """One per process. ``begin`` is asked at every look at a node that is to be emptied."""

    def __init__(self) -> None:
        self.under_way = 0
        self._not_before: dict[tuple[int, str], float] = {}

    def __repr__(self) -> str:
        return f"<Moves: {self.under_way} under way>"

    def begin(
        self, node: Node, model: str, place: Callable[[], Booking | None]
    ) -> tuple[Booking, Move] | None:
        """A place elsewhere, and the move to be ended when the answer goes on there; None: not now."""
        now = asyncio.get_running_loop().time()
        key = node.id, model
        if self.under_way >= AT_ONCE or now < self._not_before.get(key, 0.0):
            return None
        booking = place()
        if booking is None:
            self._not_before[key] = now + NOWHERE_SECONDS
            return None
        return booking, Move(self)


class Move:
    """Ends by itself after ``MOVE_SECONDS``."""

    __slots__ = ("_moves", "_timer")

    def __init__(self, moves: Moves) -> None:
        self._moves: Moves | None = moves
        moves.under_way += 1
        self._timer = asyncio.get_running_loop().call_later(MOVE_SECONDS, self.end)

    def end(self) -> None:
        """Let the next one begin. Does nothing the second time."""
        if self._moves is not None:
            self._timer.cancel()
            self._moves.under_way -= 1
            self._moves = None
