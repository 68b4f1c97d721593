"""Nodes that have gone silent. A frozen engine keeps its connections and answers ``/health``.

Silence alone proves nothing: token times have long tails, and a busy engine may be silent for
seconds. So the silence of one stream counts for little while others on the node move, and that of
the whole node has it asked for its figures. Until that is decided a silent stream is tried
elsewhere as well (a hedge); who speaks first goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from streaming.core.failures import AttemptFailed, RejectedByEngine
from streaming.fleet.endless import endless
from streaming.fleet.nodes import Fleet, Health, Node

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.025
# Less silence than this is never looked at.
QUIET = 0.125
# The first of two looks at a node is taken at this share of a silence that counts: so the second may
# decide as soon as it does.
EARLY = 0.6
# What a lone stream may be silent before it is tried elsewhere, whatever the node says of itself.
LONE_SILENCE = 2.0
LONE_FACTOR = 4.0
# Of a stream that has one token so far nothing is known: it may take as many times what its node usually
# takes from token to token, or so many seconds where that is not known either.
UNKNOWN_FACTOR, UNKNOWN_SECONDS = 2.0, 0.5
# A stream is silent for longer than usual at every fiftieth token or so; three at once are not.
MANY = 3
ANSWER_SECONDS = 0.1
LOOK_AGAIN_SECONDS = 0.1
# To be tried elsewhere costs a prefill; to be suspect costs a node its new work.
SUSPECT_SILENCE = 0.45
# What its probe has just found well is not suspect again at once, though a stream there is silent still.
SUSPECT_AGAIN_SECONDS = 1.0
# What is left, a tick later, of the time by which our own loop was late; if that was longer than
# anybody may be silent, all are given that time anew.
CATCHING_UP = 0.8


class Watched(Protocol):
    """A running attempt. Times are loop times."""

    last_data: float
    """When data last came; before the first, when it was asked."""
    has_begun: bool
    """Whether the first token has come."""
    is_paused: bool
    """Whether we are the ones who do not read."""
    is_overtaken: bool
    """Whether it has gone on elsewhere because it was silent here."""
    prompt_size: int
    """Tokens that its engine has to read before the first."""
    awaited_since: float | None
    """When it was asked to go on with an answer that stands still until its first new token."""
    patience: float
    """How many times what its node usually takes that may last: more with each node that was tried."""

    @property
    def interval(self) -> float:
        """Its usual time between two reads, in seconds; 0: not known."""

    def longest_usual(self, floor: float) -> float:
        """Silence of this stream that is usual, in seconds."""

    def hedge(self) -> None:
        """Try it elsewhere as well, if that is not being done."""

    def hasten(self) -> None:
        """Its reader waits for longer than for others: the same, but only while nobody waits for a place."""

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
        self._still: set[Node] = set()
        """Nodes that stand still as far as can be told: what is silent there is tried elsewhere."""
        self._due = 0.0
        """When the next tick is to come."""
        self._awake_since = 0.0
        """When our loop last went on after it had stood still: it has read nothing before that."""
        self._lateness = 0.0
        """By how much our own loop has been late lately: what it has not read speaks against nobody."""
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Suspicion of {[node.name for node in self._still]}>"

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
            if attempt.is_overtaken and not any(other.has_begun for other in attempts):
                self._note_left(node)
        if not attempts:
            del self._attempts[node]
            node.interval = 0.0
            self._still.discard(node)

    def _note_left(self, node: Node) -> None:
        """The last of its streams has gone on elsewhere: nothing that runs there shows how it is."""
        now = asyncio.get_running_loop().time()
        silence = now - max(node.last_data, self._awake_since) - self._lateness
        if silence > QUIET and node.health is Health.UP:
            self._doubt(node, "its streams were silent until they went on elsewhere", now)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time()
        while True:
            self._due = max(self._due, loop.time()) + TICK_SECONDS
            await asyncio.sleep(self._due - loop.time())
            now = loop.time()
            self._lateness *= CATCHING_UP
            self._note_lateness(now)
            for node, attempts in list(self._attempts.items()):
                self._look(node, attempts, now)

    def _note_lateness(self, now: float) -> None:
        late = now - self._due
        if late > QUIET:
            self._awake_since = now
        self._lateness = max(self._lateness, min(late, QUIET))

    def _look(self, node: Node, attempts: set[Watched], now: float) -> None:
        begun = [attempt.last_data for attempt in attempts if attempt.has_begun]
        node.last_data = max([node.last_data, *begun])
        self._note_pace(node, attempts, now)
        if not node.accepting:
            for attempt in list(attempts):
                attempt.migrate()
        for attempt in list(attempts):
            since = attempt.awaited_since
            if since is not None and self._is_late(node, since, attempt, now):
                attempt.hasten()
        quiet = self._quiet(node, now)
        if not quiet:
            self._still.discard(node)
            return
        overdue = self._overdue(node, now)
        if node.health is Health.DOWN:
            for attempt in overdue:
                attempt.condemn(node.reason)
            return
        is_silent = self._is_silent(node, now)
        stands_still = node in self._still or node.is_mute
        if is_silent and sum(attempt.has_begun for attempt in overdue) >= MANY:
            stands_still = stands_still or self._others_move(node, now)
        for attempt in overdue:
            limit = LONE_FACTOR * attempt.longest_usual(QUIET)
            if stands_still or self._silence(attempt, now) > max(LONE_SILENCE, limit):
                attempt.hedge()
        if node not in self._examinations and self._is_silent(node, now, EARLY):
            task = asyncio.create_task(self._examine(node), name=f"examine {node.name}")
            self._examinations[node] = task
            task.add_done_callback(lambda _: self._examinations.pop(node))

    def _note_pace(self, node: Node, attempts: Iterable[Watched], now: float) -> None:
        """A silence that is longer by now than its stream's mean counts as it is: what has just become
        slow, or has stopped, is known for it before its means have grown."""
        moving = [attempt for attempt in attempts if attempt.interval and not attempt.is_paused]
        if not moving:
            node.interval = 0.0
            return
        heard = now - self._lateness
        silences = (max(attempt.interval, heard - attempt.last_data) for attempt in moving)
        node.interval = sum(silences) / len(moving)
        node.usual_interval = sum(attempt.interval for attempt in moving) / len(moving)

    def _is_late(self, node: Node, since: float, attempt: Watched, now: float) -> bool:
        """Whether a continuation has no token yet though its node has usually one by then."""
        waited = now - max(since, self._awake_since) - self._lateness
        usual = node.first_token.longest_usual(attempt.prompt_size, QUIET)
        return waited > attempt.patience * usual

    def _silence(self, attempt: Watched, now: float) -> float:
        return now - max(attempt.last_data, self._awake_since) - self._lateness

    def _overdue(self, node: Node, now: float, share: float = 1.0) -> list[Watched]:
        """The attempts that have been silent for longer than usual, or than a share of that."""
        least = share * QUIET
        return [
            attempt
            for attempt in self._attempts.get(node, ())
            # Nobody is overdue before that; most have been heard of since, and are soon passed over.
            if now - attempt.last_data > least
            and not attempt.is_paused
            and self._silence(attempt, now) > share * self._usual(node, attempt)
        ]

    def _quiet(self, node: Node, now: float) -> list[Watched]:
        """The attempts that may soon be overdue, and those that are."""
        return self._overdue(node, now, EARLY)

    def _usual(self, node: Node, attempt: Watched) -> float:
        """Silence of an attempt that is usual, in seconds."""
        if attempt.has_begun and attempt.interval:
            return attempt.longest_usual(QUIET)
        if attempt.has_begun:
            return max(QUIET, UNKNOWN_FACTOR * node.usual_interval or UNKNOWN_SECONDS)
        if node.is_mute or node in self._still:
            # What was sent to a node that had already stopped has nothing to wait for.
            return QUIET + node.first_token.reading(attempt.prompt_size)
        return node.first_token.longest_usual(attempt.prompt_size)

    def _is_silent(self, node: Node, now: float, share: float = 1.0) -> bool:
        """Whether no stream on the node moves, for longer than is usual there, or a share of that."""
        floor = share * (QUIET + node.leniency.extra(now))
        attempts = self._attempts.get(node, ())
        return all(
            self._silence(attempt, now) > floor
            for attempt in attempts
            if attempt.has_begun and not attempt.is_paused
        ) and not self._is_reading(node, attempts, now)

    def _others_move(self, node: Node, now: float) -> bool:
        """Whether this is about ``node``: where all are silent it is the network, or ourselves, and
        to try everything elsewhere would only add to it."""
        others = [
            other
            for other, attempts in self._attempts.items()
            if other is not node and any(attempt.has_begun for attempt in attempts)
        ]
        recent = now - self._lateness - QUIET - TICK_SECONDS
        return not others or any(other.last_data > recent for other in others)

    def _is_reading(self, node: Node, attempts: Iterable[Watched], now: float) -> bool:
        """Whether a long prompt may be what keeps it: some engines do nothing else meanwhile.

        Only one that it was given before it fell silent, or a node that has stopped would be excused
        by all that is still sent to it.
        """
        given = [
            attempt
            for attempt in attempts
            if not attempt.has_begun and attempt.last_data <= node.last_data + QUIET
        ]
        if not given:
            return False
        seconds = sum(node.first_token.reading(attempt.prompt_size) for attempt in given)
        return now - min(attempt.last_data for attempt in given) < seconds

    async def _examine(self, node: Node) -> None:
        """Ask a silent node for its figures until it moves, or its streams have gone on elsewhere.

        Once it is suspect its health decides: the probe has it generate a token.
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
            self._note_lateness(now)
            if not self._quiet(node, now) or not self._is_silent(node, now, EARLY):
                return
            overdue = self._overdue(node, now)
            longest = max((self._silence(attempt, now) for attempt in overdue), default=0.0)
            if figures is None:
                if overdue:
                    self._still.add(node)
                if longest > SUSPECT_SILENCE:
                    self._doubt(node, f"its streams are silent, and: {trouble}", now)
            elif figures.progress is None or figures.progress == progress:
                # It answers, and nothing moves; one stream may just be between two tokens.
                if overdue and (figures.progress is not None or longest > LONE_SILENCE):
                    self._still.add(node)
                if (len(overdue) >= MANY and longest > SUSPECT_SILENCE) or longest > LONE_SILENCE:
                    self._doubt(node, "it answers, but generates nothing", now)
            else:
                progress = figures.progress
                self._still.discard(node)
            await asyncio.sleep(max(0.0, asked + LOOK_AGAIN_SECONDS - loop.time()))

    def _doubt(self, node: Node, reason: str, now: float) -> None:
        if node.health is not Health.UP or now - node.suspected_at > SUSPECT_AGAIN_SECONDS:
            self._suspect(node, reason)
