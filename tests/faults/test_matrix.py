"""The failure matrix: every way a node fails, under streams of each dialect, over real processes.

Each case is repeated until it has shown itself in the attempts that were recorded: who meets a
fault is decided by where streams go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.durability.reader import Seen, until
from tests.durability.stored import stored_log
from tests.engine_simulator.process import SimulatorProcess
from tests.faults.conftest import ENV, PACE
from tests.faults.line import LINES, NodeBehindProxy, NodeInNamespace
from tests.faults.pair import Attempt, Pair, assert_all_whole, nodes_of, told
from tests.stack import Stack

STREAMS = 16
ROUNDS = 5

BROKEN = {"connection_reset", "closed_early", "refused"}
SILENT = {"overtaken", "stalled", "no_first_token"}


@dataclass(frozen=True, slots=True)
class Case:
    """``fault`` is ordered of the bad node before the streams begin, ``strike`` is done to it when
    all of them move. ``ends``: how its attempts may end, other than well; ``kinds``: of what
    follows them."""

    ends: set[str]
    fault: dict[str, Any] = field(default_factory=dict)
    strike: Callable[[SimulatorProcess], None] | None = None
    kinds: set[str] = field(default_factory=lambda: {"failover"})
    tokens: int = 30

    def shows(self, attempts: list[Attempt], causes: set[str]) -> bool:
        """Whether the fault was met, and answered, as it should be. Asserts nothing else was.

        ``causes``: of failures as readers were told them; one before the engine was asked for
        tokens is told only there.
        """
        ends = {row.end_reason for row in attempts if row.node == "bad"} | causes
        ends -= {"finished"}
        kinds = {row.kind for row in attempts} - {"first"}
        assert ends <= self.ends, told(attempts)
        assert kinds <= self.kinds, told(attempts)
        return bool(ends and kinds)


def at_token(kind: str, ends: set[str], token: int = 7, **more: Any) -> Case:
    return Case(ends, {"kind": kind, "at_token": token}, **more)


def status(code: int, ends: set[str], **more: Any) -> Case:
    return Case(ends, {"kind": "status", "arg": code, **more})


def order(kind: str) -> Callable[[SimulatorProcess], None]:
    return lambda node: node.set_fault(kind=kind)


def sigterm_silent(node: SimulatorProcess) -> None:
    node.set_fault(kind="sigterm_silent")
    node.terminate()


HEDGED = {"kinds": {"hedge", "failover"}}
STRUCK: dict[str, Any] = {**HEDGED, "tokens": 90}

CASES: dict[str, Case] = {
    "reset": at_token("reset", {"connection_reset"}),
    "reset_at_first": at_token("reset", {"connection_reset"}, 0),
    "close": at_token("close", {"closed_early"}),
    "half_event": at_token("half_event", {"closed_early"}),
    "half_event_reset": at_token("half_event_reset", {"connection_reset"}),
    "truncated": at_token("truncated", {"closed_early"}),
    "truncated_at_first": at_token("truncated", {"closed_early"}, 0),
    "error_done": at_token("error_done", {"engine_error"}),
    # llama.cpp has no such finish and says so in an error.
    "abort_finish": at_token("abort_finish", {"engine_abort", "engine_error"}),
    "malformed": at_token("malformed", {"malformed_event"}),
    "status_500": status(500, {"bad_status"}),
    "status_503": status(503, {"engine_busy"}),
    "status_429": status(429, {"engine_busy"}, retry_after=1),
    "status_401": status(401, {"bad_status"}),
    "status_404": status(404, {"bad_status"}),
    "refuse": Case({"refused"}, {"kind": "refuse"}),
    "wrong_ids_echo": Case({"seam_mismatch"}, {"kind": "wrong_ids_echo"}),
    "wrong_model": Case({"seam_mismatch"}, {"kind": "wrong_model"}),
    "never_answers": Case(SILENT, {"kind": "freeze_first"}, **HEDGED),
    "freeze_before_first": at_token("freeze", SILENT, 0, **HEDGED),
    "freeze_mid_stream": at_token("freeze", SILENT, **HEDGED),
    "ends_after_a_time": Case({"closed_early"}, {"kind": "end_after_seconds", "arg": 0.3}),
    "sigkill": at_token("sigkill", BROKEN),
    "sigkill_of_all_at_once": Case(BROKEN, strike=SimulatorProcess.kill, tokens=90),
    "sigstop": Case(SILENT, strike=SimulatorProcess.stop, **STRUCK),
    "freeze_engine": Case(SILENT, strike=order("freeze_engine"), **STRUCK),
    "sigterm_silent": Case(SILENT, strike=sigterm_silent, **STRUCK),
}
VLLM_ONLY = {"wrong_ids_echo", "wrong_model"}  # llama.cpp echoes neither


@pytest.mark.parametrize("name", CASES)
async def test_every_stream_is_whole(pair: Pair, name: str) -> None:
    case = CASES[name]
    if name in VLLM_ONLY and pair.bad.dialect != "vllm":
        pytest.skip("this dialect cannot show it")
    wrong_prefixes = pair.good.stats()["wrong_prefixes"]
    attempts: list[Attempt] = []
    for number in range(ROUNDS):
        if number:
            await pair.mend()
        seen = await under(case, pair, f"{name} {number}")
        assert_all_whole(pair.stack, seen)
        attempts = pair.attempts(seen)
        if case.shows(attempts, pair.causes(seen)):
            break
    else:
        pytest.fail(f"not shown: {told(attempts)}")
    assert pair.good.stats()["wrong_prefixes"] == wrong_prefixes
    assert pair.stack.sql(
        "SELECT count(*) FROM streaming_streamsession WHERE state NOT IN ('completed', 'failed')"
    ) == [(0,)]


async def under(case: Case, pair: Pair, text: str) -> list[Seen]:
    """Streams that meet the fault of ``case``, read to their ends."""
    if case.fault:
        pair.bad.set_fault(**{"times": -1, **case.fault})
    if case.strike is None:
        async with pair.readers() as readers:
            return await readers.ask_many(STREAMS, text, case.tokens)
    async with pair.streams(STREAMS, text, case.tokens) as (_, ends):
        case.strike(pair.bad)
        return await ends


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("dialect", ["vllm", "llamacpp"])
async def test_packets_are_lost(
    start_stack: Callable[..., Stack], dialect: str, line: type[NodeInNamespace | NodeBehindProxy]
) -> None:
    with line(dialect, pace=PACE) as bad, SimulatorProcess(dialect, pace=PACE) as good:
        stack = start_stack(engine_nodes=nodes_of(bad=bad, good=good), env=ENV)
        pair = Pair(stack, bad, good, stack.api_key())
        async with pair.streams(STREAMS, "lost", 90) as (_, ends):
            bad.lose_packets()
            seen = await ends
        assert_all_whole(stack, seen)
        assert Case(SILENT, **HEDGED).shows(pair.attempts(seen), pair.causes(seen))
        await until(lambda: pair.healthy == 1)
        bad.deliver()
        await until(lambda: pair.healthy == 2)
        await until(lambda: pair.running == 0)  # nothing goes on that nobody reads


@pytest.mark.parametrize("slow", [1, 2])
async def test_slow_nodes_are_not_failed_over(pair: Pair, slow: int) -> None:
    """One token a second, on one node or on both: tried elsewhere at most, and whole."""
    for node in [pair.bad, pair.good][:slow]:
        node.set_fault(kind="slow", arg=1.0, times=-1)
    async with pair.readers() as readers:
        seen = await readers.ask_many(STREAMS, f"{slow} slow", 5)
    assert_all_whole(pair.stack, seen)
    attempts = pair.attempts(seen)
    assert {row.kind for row in attempts} <= {"first", "hedge"}, told(attempts)
    assert pair.events(seen)["recovering"] == 0


async def test_all_nodes_end_every_request_after_a_time(pair: Pair) -> None:
    for node in pair.nodes:
        node.set_fault(kind="end_after_seconds", arg=0.4, times=-1)
    async with pair.readers() as readers:
        seen = await readers.ask_many(STREAMS, "short-lived", 60)
    assert_all_whole(pair.stack, seen)
    attempts = pair.attempts(seen)
    assert {row.end_reason for row in attempts} == {"finished", "closed_early"}, told(attempts)
    assert {row.kind for row in attempts} == {"first", "failover"}
    assert all(row.number > 1 for row in attempts if row.end_reason == "finished")


@pytest.mark.parametrize("kind", ["reset", "error_done", "freeze"])
async def test_a_second_failure_during_recovery(pair: Pair, kind: str) -> None:
    """A continuation fails before its first token; what is left is one node, and it goes on."""
    async with pair.streams(STREAMS, f"second {kind}", 90) as (_, ends):
        # New requests only; of what breaks off not so many that one answer could meet all of them.
        times = 3 if kind == "freeze" else 1
        pair.good.set_fault(kind=kind, after_tokens=0, times=times)
        pair.bad.kill()
        if kind == "freeze":  # a silent continuation needs a place to be tried beside it
            await until(lambda: pair.good.stats()["faults"] >= 3)
            pair.bad.restart()
        seen = await ends
    assert_all_whole(pair.stack, seen)
    failed = [row for row in pair.attempts(seen) if row.number > 1 and row.end_reason != "finished"]
    assert len(failed) >= times, told(pair.attempts(seen))
    expected = {"reset": {"connection_reset"}, "error_done": {"engine_error"}, "freeze": SILENT}
    assert {row.end_reason for row in failed} <= expected[kind], told(failed)


async def test_all_nodes_down_then_back(pair: Pair) -> None:
    async with pair.streams(STREAMS, "down and back", 90) as (streams, ends):
        for node in pair.nodes:
            node.kill()
        await until(lambda: pair.healthy == 0)
        await until(lambda: all(len(s.comments) > 0 for s in streams))  # told that we go on
        for node in pair.nodes:
            node.restart()
        seen = await ends
    assert_all_whole(pair.stack, seen)
    attempts = pair.attempts(seen)
    assert {row.end_reason for row in attempts} <= {"finished", *BROKEN}, told(attempts)
    assert all(row.number > 1 for row in attempts if row.end_reason == "finished")
    assert pair.events(seen)["recovered"] >= STREAMS


async def test_no_node_for_longer_than_the_limit(pair: Pair) -> None:
    """A clear end; what was delivered stays, and can be continued later."""
    async with pair.streams(STREAMS, "down for good", 90) as (_, ends):
        for node in pair.nodes:
            node.kill()
        seen = await ends
    for reader in seen:
        assert reader.status == 200
        assert reader.error is not None, reader.trouble
        assert (reader.error["code"], reader.error["resumable"]) == ("no_healthy_node", True)
        assert not reader.done
        assert b": ping" in [comment for _, comment in reader.comments]
        assert pair.session(reader)[:2] == ("suspended", "no_healthy_node")
        assert stored_log(pair.stack, reader.session_id).text == reader.text
        assert reader.answer.text.startswith(reader.text)
