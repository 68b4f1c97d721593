"""Stop is not disconnect: what becomes of a session whose reader leaves, or that is told to stop.

Each row of ``TABLE`` is a situation and what is asked of it; then what must be stored in the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import pytest

from tests.delivery.conftest import GRACE, PACE, House
from tests.delivery.story import TROUBLE, Door, Story, outcome, state_of
from tests.durability.reader import question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Gateway, Stack

SLACK = 1.0
STARTED = ("streaming", "")


@dataclass
class Pair:
    """Two gateways, and two engines of which one is asked first."""

    stack: Stack
    engines: list[SimulatorProcess]
    door: Door
    readings: list[asyncio.Task[bool]] = field(default_factory=list)

    def stay(self, gateway: Gateway, story: Story) -> None:
        """Have a reader read to the end, whatever the test does meanwhile."""
        self.readings.append(asyncio.create_task(self.door.read(gateway.url, story)))

    async def let_readers_end(self) -> None:
        readings = list(self.readings)
        self.readings.clear()
        if readings:
            _, pending = await asyncio.wait(readings, timeout=3)
            for task in pending:
                task.cancel()
            outcomes = await asyncio.gather(*readings, return_exceptions=True)
            assert not pending
            assert all(isinstance(outcome, (bool, *TROUBLE)) for outcome in outcomes), outcomes

    @property
    def owner(self) -> Gateway:
        return self.stack.gateway(0)

    @property
    def other(self) -> Gateway:
        return self.stack.gateway(1)


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Stack, list[SimulatorProcess]]]:
    with (
        SimulatorProcess("vllm", pace=PACE) as a,
        SimulatorProcess("vllm", pace=PACE) as b,
        Stack(
            gateways=2,
            engine_nodes=[f"a=vllm+{a.url}", f"b=vllm+{b.url}"],
            env={"GRACE_SECONDS": str(GRACE), "HEALTH_INTERVAL": "0.2", "NODE_WAIT_SECONDS": "20"},
        ) as stack,
    ):
        yield stack, [a, b]


@pytest.fixture
async def pair(two: tuple[Stack, list[SimulatorProcess]]) -> AsyncIterator[Pair]:
    stack, engines = two
    for engine in engines:
        if not engine.is_alive:
            engine.restart()
        engine.clear_faults()
    for gateway in stack.gateways:
        if gateway.process.poll() is not None:
            gateway.start_again()
    async with Door(stack.api_key()) as door:
        yield Pair(stack, engines, door)


async def streaming(pair: Pair) -> Story:
    story = await pair.door.create(pair.owner.url, question("table", 400))
    await pair.door.read(pair.owner.url, story, leave_at=5)
    return story


async def streaming_with_reader(pair: Pair) -> Story:
    """The reader stays; it is told the end."""
    story = await pair.door.create(pair.owner.url, question("table", 400))
    pair.stay(pair.owner, story)
    await until(lambda: story.cursor >= 5)
    return story


async def read_in_two_tabs(pair: Pair) -> Story:
    """One tab is closed, the other one reads on."""
    story = await streaming_with_reader(pair)
    other_tab = Story(story.messages, story.session_id)
    await pair.door.read(pair.owner.url, other_tab, leave_at=5)
    await asyncio.sleep(GRACE + 0.5)
    assert state_of(pair.stack, story) == STARTED
    return story


async def left_and_suspended(pair: Pair) -> Story:
    story = await streaming(pair)
    await until(lambda: state_of(pair.stack, story)[0] == "suspended")
    return story


async def read_elsewhere(pair: Pair) -> Story:
    """The owner has no reader of its own, for longer than the grace."""
    story = await pair.door.create(pair.owner.url, question("table", 600))
    pair.stay(pair.other, story)
    await asyncio.sleep(GRACE + 1.0)
    assert story.cursor > PACE * GRACE
    assert state_of(pair.stack, story) == STARTED
    return story


async def recovering(pair: Pair) -> Story:
    """Its engine has died, and there is no other."""
    story = await streaming_with_reader(pair)
    for engine in pair.engines:
        engine.kill()
    await until(lambda: state_of(pair.stack, story)[0] == "recovering")
    return story


async def owner_dead(pair: Pair) -> Story:
    story = await streaming(pair)
    pair.owner.kill()
    return story


async def owner_frozen(pair: Pair) -> Story:
    story = await streaming(pair)
    pair.owner.stop()
    return story


async def finished(pair: Pair) -> Story:
    story = await pair.door.create(pair.owner.url, question("table", 20))
    await pair.door.read(pair.owner.url, story)
    return story


@dataclass(frozen=True)
class Row:
    situation: Callable[[Pair], Awaitable[Story]]
    at_owner: bool = True
    """Which gateway is asked to stop it."""
    state: str = "stopped"
    cause: str = "client_stop"
    seconds: float = 1.5
    """How long the answer may take."""

    def __str__(self) -> str:
        return f"{self.situation.__name__}-{'here' if self.at_owner else 'elsewhere'}"


TABLE = [
    Row(streaming),
    Row(streaming_with_reader),
    Row(streaming_with_reader, at_owner=False),
    Row(read_in_two_tabs),
    Row(left_and_suspended),
    Row(left_and_suspended, at_owner=False),
    Row(read_elsewhere),
    Row(read_elsewhere, at_owner=False),
    Row(recovering),
    Row(recovering, at_owner=False),
    Row(owner_dead, at_owner=False),
    Row(owner_frozen, at_owner=False, seconds=7),
    Row(finished, state="completed", cause=""),
    Row(finished, at_owner=False, state="completed", cause=""),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
async def test_stop(pair: Pair, row: Row) -> None:
    story = await row.situation(pair)
    url = (pair.owner if row.at_owner else pair.other).url
    began = time.monotonic()
    try:
        while True:
            status, body = await pair.door.stop(url, story)
            if status == 200:
                break
            assert (status, body["state"]) != (202, "stopped")
        took = time.monotonic() - began
        assert took < row.seconds, f"{took:.1f} s"
        assert (body["state"], body["cause"]) == (row.state, row.cause or None)
        stored = outcome(pair.stack, story)
        assert (stored.state, stored.cause) == (row.state, row.cause)
        assert stored.log.terminal is not None
        assert stored.completion_tokens == len(stored.log.ids)
        await pair.let_readers_end()
        # A reader that is still there, or comes back, is told; and nothing is generated for it.
        await pair.door.read_on([pair.other.url], story, 5)
        assert story.end == ("done", story.end[1])
        assert story.end[1]["state"] == row.state
        for engine in pair.engines:
            if engine.is_alive:
                await until(lambda engine=engine: engine.stats()["running"] == 0, SLACK)
    finally:
        if row.situation is owner_frozen:
            pair.owner.cont()
    if row.situation is owner_frozen:
        # It wakes up and finds that the session is no longer its own.
        await asyncio.sleep(0.5)
        awake = outcome(pair.stack, story)
        assert (awake.state, awake.cause, awake.log) == (stored.state, stored.cause, stored.log)


async def test_stop_races_the_return(pair: Pair) -> None:
    """Stopped while it is being continued for a reader that came back elsewhere."""
    story = await left_and_suspended(pair)
    reading = asyncio.create_task(pair.door.read_on([pair.other.url], story))
    status, _ = await pair.door.stop(pair.owner.url, story)
    await reading
    assert status == 200
    assert story.end is not None
    stored = outcome(pair.stack, story)
    assert (stored.state, stored.cause) == ("stopped", "client_stop")


async def test_owner_dies_before_the_first_token(pair: Pair) -> None:
    """There is a prompt and no answer to continue."""
    for engine in pair.engines:
        engine.set_fault(kind="late_tokens", at_token=0, match="first token", arg=1.0)
    story = await pair.door.create(pair.owner.url, question("first token", 40))
    prompt = "SELECT prompt_tokens FROM streaming_streamsession WHERE id = %s"
    await until(lambda: pair.stack.sql(prompt, story.session_id) != [(None,)])
    pair.owner.kill()
    await pair.door.read_on([pair.other.url], story)
    assert story.is_whole
    assert outcome(pair.stack, story).log.epochs == {2}


# Without a stop


async def test_suspend_lets_the_engine_go_at_the_end_of_grace(house: House, door: Door) -> None:
    story = await door.create(house.url, question("suspend", 2000))
    await door.read(house.url, story, leave_at=20)
    left = time.monotonic()
    await asyncio.sleep(GRACE * 0.5)
    assert house.running == 1
    await until(lambda: house.running == 0)
    took = time.monotonic() - left
    print(f"engine free {took - GRACE:.2f} s after the end of grace")
    assert GRACE <= took < GRACE + 1
    await until(lambda: state_of(house.stack, story) == ("suspended", "client_gone"))
    assert outcome(house.stack, story).log.terminal is None
    await door.read(house.url, story, leave_at=story.cursor + 100)
    await until(lambda: outcome(house.stack, story).state == "streaming")  # noted a moment later
    assert (await door.stop(house.url, story))[0] == 200


async def test_grace_is_for_the_return(house: House, door: Door) -> None:
    """A reader that is back within it finds the same attempt."""
    story = await door.create(house.url, question("grace", 150))
    for leave_at in (20, 60, 100):
        await door.read(house.url, story, leave_at=leave_at)
        await asyncio.sleep(GRACE * 0.3)
    await door.read(house.url, story)
    assert story.is_whole
    stored = outcome(house.stack, story)
    assert (stored.state, stored.cause) == ("completed", "")
    attempts = "SELECT count(*) FROM streaming_attempt WHERE session_id = %s"
    assert house.stack.sql(attempts, story.session_id) == [(1,)]


async def test_cancel_wastes_at_most_a_second(house: House) -> None:
    async with Door(house.stack.api_key(on_disconnect="cancel")) as door:
        story = await door.create(house.url, question("cancel", 512))
        await door.read(house.url, story, leave_at=200)
        await until(lambda: state_of(house.stack, story)[0] == "cancelled")
        stored = outcome(house.stack, story)
        assert stored.cause == "client_gone"
        print(f"{len(stored.log.ids) - 200} tokens after the reader had left")
        assert len(stored.log.ids) <= story.cursor + PACE
        await until(lambda: house.running == 0, SLACK)


async def test_cancel_waits_for_the_first_reader(house: House) -> None:
    """Between ``POST /v1/sessions`` and its events nobody reads, and nobody has left."""
    async with Door(house.stack.api_key(on_disconnect="cancel")) as door:
        story = await door.create(house.url, question("cancel", 60))
        await asyncio.sleep(GRACE * 0.7)
        await door.read(house.url, story)
        assert story.is_whole
        never_read = await door.create(house.url, question("cancel never read", 500))
        await until(lambda: state_of(house.stack, never_read)[0] == "cancelled")


async def test_finish_needs_no_reader(house: House) -> None:
    async with Door(house.stack.api_key(on_disconnect="finish")) as door:
        story = await door.create(house.url, question("finish", 200))
        await door.read(house.url, story, leave_at=10)
        await until(lambda: state_of(house.stack, story)[0] == "completed")
        stored = outcome(house.stack, story)
        assert stored.delivered_seq <= story.cursor + PACE * 0.2
        await door.read(house.url, story)
        assert story.is_whole


# The evidence of delivery


async def test_evidence_by_acknowledgement(house: House, door: Door) -> None:
    story = await door.create(house.url, question("evidence", 400))
    await door.read(house.url, story, leave_at=50)
    assert await door.ack(house.url, story, story.cursor) == (200, {"delivered_seq": story.cursor})
    await until(lambda: outcome(house.stack, story).evidence == "ack")
    assert outcome(house.stack, story).delivered_seq >= story.cursor
    assert (await door.ack(house.url, story, 5000))[0] == 409
    assert (await door.stop(house.url, story))[0] == 200


async def test_evidence_by_cursor(house: House, door: Door) -> None:
    story = await door.create(house.url, question("evidence", 30))
    await until(lambda: state_of(house.stack, story)[0] == "completed")
    assert (outcome(house.stack, story).evidence, outcome(house.stack, story).delivered_seq) == (
        "none",
        0,
    )
    # A reader that leaves before it is told anything proves no more than its cursor.
    claimed = Story(story.messages, story.session_id, cursor=12)
    await door.read(house.url, claimed, leave_when=lambda: True)
    await until(lambda: outcome(house.stack, story).delivered_seq >= 12)
    assert outcome(house.stack, story).evidence in ("cursor", "socket")


async def test_evidence_by_socket(house: House, door: Door) -> None:
    story = await door.create(house.url, question("evidence", 30))
    await door.read(house.url, story)
    await until(lambda: outcome(house.stack, story).delivered_seq == story.cursor)
    assert outcome(house.stack, story).evidence == "socket"


async def test_weaker_evidence_does_not_replace_a_stronger_one(house: House, door: Door) -> None:
    story = await door.create(house.url, question("evidence", 30))
    await door.read(house.url, story)
    assert (await door.ack(house.url, story, story.cursor))[0] == 200
    again = Story(story.messages, story.session_id)
    await door.read(house.url, again)
    await asyncio.sleep(0.3)
    stored = outcome(house.stack, story)
    assert (stored.evidence, stored.delivered_seq) == ("ack", story.cursor)


async def test_evidence_survives_suspension_and_its_return(house: House, door: Door) -> None:
    story = await door.create(house.url, question("evidence", 200))
    await door.read(house.url, story, leave_at=50)
    await door.ack(house.url, story, story.cursor)
    await until(lambda: state_of(house.stack, story)[0] == "suspended")
    before = outcome(house.stack, story)
    assert before.evidence in ("ack", "socket")
    # Continued, and ended before its reader has got anything more.
    assert (await door.stop(house.url, story))[0] == 200
    after = outcome(house.stack, story)
    assert after.evidence == before.evidence
    assert after.delivered_seq == before.delivered_seq <= len(before.log.ids)
