"""Answers whose continuation comes to a node that is slow."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.durability.reader import Seen, until
from tests.engine_simulator.process import SimulatorProcess
from tests.faults.conftest import ENV, PACE
from tests.faults.pair import Attempt, Pair, assert_all_whole, nodes_of, told
from tests.stack import Stack

LATE = 1.0
"""Seconds by which a token of a slow node is late."""
JUST_SLOW = 0.1
"""Seconds of silence by which its streams alone show it: less than what is looked at as silence."""


@pytest.fixture(scope="module", params=["vllm", "llamacpp"])
def three(request: pytest.FixtureRequest) -> Iterator[tuple[Pair, SimulatorProcess]]:
    """A pair, and a third node."""
    dialect = request.param
    with (
        SimulatorProcess(dialect, pace=PACE) as bad,
        SimulatorProcess(dialect, pace=PACE) as good,
        SimulatorProcess(dialect, pace=PACE) as slow,
        Stack(engine_nodes=nodes_of(bad=bad, good=good, slow=slow), env=ENV) as stack,
    ):
        yield Pair(stack, bad, good, stack.api_key()), slow


def of_session(attempts: list[Attempt], session_id: str) -> list[Attempt]:
    return [row for row in attempts if row.session_id == session_id]


def begun_on(node: str, attempts: list[Attempt], seen: list[Seen]) -> list[Seen]:
    return [reader for reader in seen if of_session(attempts, reader.session_id)[0].node == node]


async def test_who_waits_at_a_slow_node_is_tried_elsewhere(pair: Pair) -> None:
    """The only other node lets new requests wait, and the one that broke off is well again at once:
    answers go on there."""

    def overtaken() -> list[Attempt]:
        return [
            row
            for row in pair.attempts(streams)
            if (row.kind, row.node, row.end_reason) == ("failover", "good", "overtaken")
        ]

    async with pair.streams(16, "at a slow one", 120) as (streams, ends):
        assert len(begun_on("bad", pair.attempts(streams), streams)) > 4
        # What is new there waits for its first token; what runs there goes on.
        pair.good.set_fault(kind="late_tokens", after_tokens=0, arg=LATE, times=-1)
        pair.bad.set_fault(kind="reset_connections")
        await until(lambda: bool(overtaken()))
        pair.good.clear_faults()
        seen = await ends
    assert_all_whole(pair.stack, seen)
    for row in overtaken():
        assert row.first_seq is None
        later = [
            one
            for one in of_session(pair.attempts(seen), row.session_id)
            if one.number > row.number
        ]
        assert (later[0].kind, later[0].node) == ("hedge", "bad"), told(later)


async def test_what_has_just_become_slow_gets_no_continuation(
    three: tuple[Pair, SimulatorProcess],
) -> None:
    """Of two nodes that are left one has been slow for a tenth of a second: all go to the other."""
    pair, slow = three
    async with pair.streams(24, "just slow", 240) as (streams, ends):
        placed = pair.attempts(streams)
        waiting = begun_on("slow", placed, streams)
        assert len(waiting) > 4
        assert len(begun_on("bad", placed, streams)) > 4
        slow.set_fault(kind="slow_engine", arg=LATE)
        await until(lambda: _silence(waiting) > JUST_SLOW)
        pair.bad.set_fault(kind="reset_connections")
        await until(lambda: pair.events(streams)["recovered"] > 0)
        slow.clear_faults()
        seen = await ends
    assert_all_whole(pair.stack, seen)
    attempts = pair.attempts(seen)
    went_on = [
        of_session(attempts, reader.session_id)[1].node
        for reader in begun_on("bad", attempts, seen)
    ]
    assert set(went_on) == {"good"}, told(attempts)


def _silence(streams: list[Seen]) -> float:
    """Of the stream that got something last, in seconds."""
    return time.monotonic() - max(reader.token_times[-1] for reader in streams)
