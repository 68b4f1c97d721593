"""A random course of faults, the same for the same seed, and what must hold after it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from tests.delivery.story import TROUBLE, Door, Story, outcome
from tests.durability.reader import question, until
from tests.schedules.world import POLICIES, World, wrong_prefixes

STORIES = 4
STEPS = 7
END_SECONDS = 45.0
ENDS = {
    "suspend": {"completed"},
    "finish": {"completed"},
    "cancel": {"completed", "cancelled"},
}


@dataclass
class Reading:
    """One reader that comes back until it has the end."""

    door: Door
    policy: str
    story: Story
    away_until: float = 0.0
    slow_until: float = 0.0
    cut: bool = False
    stop_asked: bool = False
    turn: int = 0

    async def run(self, urls: list[str]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if (away := self.away_until - loop.time()) > 0:
                await asyncio.sleep(away)
            self.cut = False
            try:
                async with asyncio.timeout(4.0):  # a frozen gateway says nothing
                    if await self.door.read(
                        urls[self.turn % len(urls)],
                        self.story,
                        leave_when=lambda: self.cut,
                        patience=lambda: 0.3 if loop.time() < self.slow_until else 0.0,
                    ):
                        return
            except TROUBLE:
                self.turn += 1
            await asyncio.sleep(0.05)

    async def ask_to_stop(self, urls: list[str]) -> None:
        """Until one of the gateways confirms that it has ended."""
        self.stop_asked = True
        turn = self.turn
        while True:
            turn += 1
            try:
                async with asyncio.timeout(7.0):
                    status, body = await self.door.stop(urls[turn % len(urls)], self.story)
            except TROUBLE:
                await asyncio.sleep(0.1)
                continue
            assert status in (200, 202, 503), body
            if status == 200:
                return
            await asyncio.sleep(0.05)


@dataclass
class Course:
    """One schedule as it runs. ``steps`` is what to say when it fails."""

    world: World
    random: random.Random
    readings: list[Reading] = field(default_factory=list)
    later: list[asyncio.Task[None]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def in_a_while(self, seconds: float, action: Callable[[], object]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            await self.world.do(action)

        self.later.append(asyncio.create_task(wait()))

    def pick(self) -> Reading:
        return self.random.choice(self.readings)


Fault = Callable[[Course], Awaitable[str]]
FAULTS: dict[Fault, int] = {}


def fault(weight: int) -> Callable[[Fault], Fault]:
    def register(function: Fault) -> Fault:
        FAULTS[function] = weight
        return function

    return register


@fault(6)
async def cut(course: Course) -> str:
    """A reader leaves, and comes back: within the grace or after it, here or elsewhere."""
    reading, away = course.pick(), course.random.choice([0.0, 0.3, 1.2, 2.0])
    reading.away_until = asyncio.get_running_loop().time() + away
    reading.turn += course.random.randint(0, 1)
    reading.cut = True
    return f"cut {course.readings.index(reading)} for {away}"


@fault(4)
async def kill_engine(course: Course) -> str:
    number, dead = course.random.randrange(2), course.random.uniform(0.1, 1.5)
    engine = course.world.engines[number]
    await course.world.do(lambda: course.world.kill_engine(engine))
    course.in_a_while(dead, lambda: course.world.revive_engine(engine))
    return f"kill engine {number} for {dead:.1f}"


@fault(3)
async def kill_gateway(course: Course) -> str:
    number, dead = course.random.randrange(2), course.random.uniform(0.0, 1.0)
    gateway = course.world.stack.gateways[number]
    await course.world.do(lambda: course.world.kill_gateway(gateway))
    course.in_a_while(dead, lambda: course.world.revive_gateway(gateway))
    return f"kill gateway {number} for {dead:.1f}"


@fault(2)
async def freeze_gateway(course: Course) -> str:
    """For longer than it may be silent, sometimes: it wakes up and owns nothing any more."""
    number, seconds = course.random.randrange(2), course.random.choice([0.3, 1.0, 1.0, 6.5])
    gateway = course.world.stack.gateways[number]
    await course.world.do(lambda: course.world.freeze(gateway))
    course.in_a_while(seconds, lambda: course.world.thaw(gateway))
    return f"freeze gateway {number} for {seconds}"


@fault(1)
async def stop(course: Course) -> str:
    reading = course.pick()
    course.later.append(asyncio.create_task(reading.ask_to_stop(course.world.urls)))
    return f"stop {course.readings.index(reading)}"


@fault(3)
async def read_slowly(course: Course) -> str:
    reading, seconds = course.pick(), course.random.uniform(0.5, 2.5)
    reading.slow_until = asyncio.get_running_loop().time() + seconds
    return f"slow {course.readings.index(reading)} for {seconds:.1f}"


@fault(1)
async def restart_redis(course: Course) -> str:
    await course.world.do(course.world.stack.restart_redis)
    return "restart redis"


async def run_schedule(world: World, seed: int) -> None:
    """Raises ``AssertionError`` that names the seed and the steps."""
    course = Course(world, random.Random(seed))
    try:
        await _run(course, seed)
    except Exception as exc:
        steps = "\n  ".join(course.steps)
        raise AssertionError(
            f"schedule {seed} (SCHEDULE_SEED={seed} SCHEDULES=1 make soak ARGS=tests/schedules): "
            f"{exc!r}\n  {steps}"
        ) from exc


async def _run(course: Course, seed: int) -> None:
    world, chance = course.world, course.random
    async with AsyncExitStack() as stack:
        for number in range(STORIES):
            policy = chance.choice(POLICIES)
            door = await stack.enter_async_context(Door(world.keys[policy]))
            turn, tokens = chance.randrange(2), chance.randint(60, 300)
            story = await door.create(
                world.urls[turn], question(f"schedule {seed} story {number}", tokens)
            )
            reading = Reading(door, policy, story, turn=turn + chance.randrange(2))
            course.readings.append(reading)
            course.steps.append(f"{number}: {policy}, {tokens} tokens, {story.session_id}")
        tasks = [asyncio.create_task(reading.run(world.urls)) for reading in course.readings]
        try:
            for _ in range(STEPS):
                await asyncio.sleep(chance.uniform(0.02, 0.5))
                (strike,) = chance.choices(list(FAULTS), list(FAULTS.values()))
                course.steps.append(await strike(course))
            async with asyncio.timeout(END_SECONDS):
                await asyncio.gather(*course.later)
                await world.do(world.heal)
                await asyncio.gather(*tasks)
        except TimeoutError:
            unfinished = [reading.story for reading in course.readings if not reading.story.end]
            raise AssertionError(f"not at their end: {unfinished}") from None
        finally:
            for task in [*tasks, *course.later]:
                task.cancel()
            await asyncio.gather(*tasks, *course.later, return_exceptions=True)
            await world.do(world.heal)
    await check(course)


async def check(course: Course) -> None:
    """The invariants."""
    world = course.world
    await until(lambda: all(e.stats()["running"] == 0 for e in world.engines), 5.0)
    ours = {reading.story.session_id for reading in course.readings}
    wrong = world.wrong_prefixes + [w for engine in world.engines for w in wrong_prefixes(engine)]
    wrong = [request for request in wrong if request[:36] in ours]
    assert not wrong, f"an engine was asked for another answer's rest: {wrong}"
    for reading in course.readings:
        story = reading.story
        stored = outcome(world.stack, story)  # contiguous, digests, reader's text == log's text
        allowed = ENDS[reading.policy] | ({"stopped"} if reading.stop_asked else set())
        assert story.end is not None
        name, end = story.end
        assert name == "done", end
        assert stored.state == end["state"], (stored.state, end)
        assert stored.state in allowed, (story, stored.state, stored.cause)
        assert stored.cause or stored.state == "completed"
        assert stored.log.terminal is not None
        assert story.cursor == stored.durable_seq == stored.completion_tokens + 1
        assert story.text == stored.log.text
        if stored.state == "completed":
            assert story.text == story.answer.text
        assert stored.delivered_seq <= story.cursor
        assert stored.evidence == "none" or stored.delivered_seq > 0
        open_attempts = world.stack.sql(
            "SELECT number FROM streaming_attempt WHERE session_id = %s AND ended_at IS NULL",
            story.session_id,
        )
        assert not open_attempts, open_attempts
