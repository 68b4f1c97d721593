"""Nodes that have gone silent. A frozen engine keeps its connections and answers ``/health``.

Silence alone proves nothing: token times have long tails, and a busy engine may be silent for
seconds. So the silence of one stream counts for little while others on the node move, and that of
the whole node has it asked for its figures. Until that is decided a silent stream is tried
elsewhere as well (a hedge); who speaks first goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from streaming.core.failures import AttemptFailed, RejectedByEngine
from streaming.fleet.endless import endless
from streaming.fleet.nodes import Fleet, Health, Node

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.05
# Less silence than this is never looked at.
USUAL_SILENCE = 0.25
# Until the node's own time to first token is known.
FIRST_TOKEN_UNKNOWN, FIRST_TOKEN_FLOOR = 3.0, 1.0
# What a lone stream may be silent before it is tried elsewhere, whatever the node says of itself.
LONE_SILENCE = 2.0
LONE_FACTOR = 4.0
# A stream is silent for longer than usual at every fiftieth token or so; three at once are not.
MANY = 3
ANSWER_SECONDS = 0.2
LOOK_AGAIN_SECONDS = 0.25
# Our own loop stood still for this long: what we have not read says nothing about anybody.
OWN_PAUSE = 0.15


class Watched(Protocol):
    """A running attempt. Times are loop times."""

    last_data: float
    """When data last came; before the first, when it was asked."""
    has_begun: bool
    """Whether the first token has come."""
    is_paused: bool
    """Whether we are the ones who do not read."""

    def longest_usual(self, floor: float) -> float:
        """Silence of this stream that is usual, in seconds."""

    def hedge(self) -> None:
        """Try it elsewhere as well, if that is not being done."""

    def migrate(self) -> None:
        """Its node is to be emptied: go on elsewhere, when there is a place."""

    def condemn(self, reason: str) -> None:
        """Its node is down, and it is silent: it has failed."""


class Suspicion:
    """One per process: looks over its running attempts, a few times per second."""

    def __init__(self, fleet: Fleet, suspect: Callable[[Node, str], None]) -> None:
        self._fleet = fleet
        self._suspect = suspect
        self._attempts: dict[Node, set[Watched]] = {}
        self._examinations: dict[Node, asyncio.Task[None]] = {}
        self._suspected: set[Node] = set()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Suspicion of {[node.name for node in self._suspected]}>"

    def start(self) -> None:
        self._task = asyncio.create_task(endless(self._run, "suspicion"), name="suspicion")

    async def stop(self) -> None:
        tasks = [*self._examinations.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def began(self, node: Node, attempt: Watched) -> None:
        self._attempts.setdefault(node, set()).add(attempt)

    def ended(self, node: Node, attempt: Watched) -> None:
        attempts = self._attempts[node]
        attempts.discard(attempt)
        if attempt.has_begun:
            node.last_data = max(node.last_data, attempt.last_data)
        if not attempts:
            del self._attempts[node]
            self._suspected.discard(node)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        blind_until = 0.0
        while True:
            due = max(due, loop.time()) + TICK_SECONDS
            await asyncio.sleep(due - loop.time())
            now = loop.time()
            if now - due > OWN_PAUSE:
                blind_until = now + USUAL_SILENCE
            if now < blind_until:
                continue
            for node, attempts in list(self._attempts.items()):
                self._look(node, attempts, now)

    def _look(self, node: Node, attempts: set[Watched], now: float) -> None:
        begun = [attempt.last_data for attempt in attempts if attempt.has_begun]
        node.last_data = max([node.last_data, *begun])
        if not node.accepting:
            for attempt in list(attempts):
                attempt.migrate()
        overdue = self._overdue(node, now)
        if not overdue:
            self._suspected.discard(node)
            return
        if node.health is Health.DOWN:
            for attempt in overdue:
                attempt.condemn(node.reason)
            return
        for attempt in overdue:
            limit = LONE_FACTOR * attempt.longest_usual(USUAL_SILENCE)
            if node in self._suspected or now - attempt.last_data > max(LONE_SILENCE, limit):
                attempt.hedge()
        if node not in self._examinations and self._is_silent(node, now):
            task = asyncio.create_task(self._examine(node), name=f"examine {node.name}")
            self._examinations[node] = task
            task.add_done_callback(lambda _: self._examinations.pop(node))

    def _overdue(self, node: Node, now: float) -> list[Watched]:
        """The attempts that have been silent for longer than usual."""
        first = (
            node.ttft.longest_usual(FIRST_TOKEN_FLOOR)
            if node.ttft.is_known
            else FIRST_TOKEN_UNKNOWN
        )
        return [
            attempt
            for attempt in self._attempts.get(node, ())
            # Nobody is overdue before that; most have been heard of since, and are soon passed over.
            if now - attempt.last_data > USUAL_SILENCE
            and not attempt.is_paused
            and now - attempt.last_data
            > (attempt.longest_usual(USUAL_SILENCE) if attempt.has_begun else first)
        ]

    def _is_silent(self, node: Node, now: float) -> bool:
        """Whether no stream on the node moves."""
        return all(
            now - attempt.last_data > USUAL_SILENCE
            for attempt in self._attempts.get(node, ())
            if attempt.has_begun and not attempt.is_paused
        )

    async def _examine(self, node: Node) -> None:
        """Ask a silent node for its figures until it moves, its streams are gone, or it is suspected.

        Once it is, its health decides: the probe has it generate a token.
        """
        loop = asyncio.get_running_loop()
        progress: float | None = None
        while True:
            asked = loop.time()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    figures = await node.dialect.figures(ANSWER_SECONDS)
            except (AttemptFailed, RejectedByEngine, TimeoutError) as exc:
                figures, trouble = None, str(exc) or f"no answer within {ANSWER_SECONDS} s"
            now = loop.time()
            overdue = self._overdue(node, now)
            if not overdue or not self._is_silent(node, now):
                return
            if figures is None:
                self._suspected.add(node)
                self._suspect(node, f"its streams are silent, and: {trouble}")
            elif figures.progress is None or figures.progress == progress:
                # It answers, and nothing moves; one stream may just be between two tokens.
                longest = max(now - attempt.last_data for attempt in overdue)
                if len(overdue) >= MANY or longest > LONE_SILENCE:
                    self._suspected.add(node)
                    self._suspect(node, "it answers, but generates nothing")
            else:
                progress = figures.progress
                self._suspected.discard(node)
            await asyncio.sleep(max(0.0, asked + LOOK_AGAIN_SECONDS - loop.time()))
