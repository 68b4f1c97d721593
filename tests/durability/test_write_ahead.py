"""What a client has received is in the log, wherever the gateway process is killed."""

from __future__ import annotations

import asyncio
import random
import time

import psycopg

from tests.durability.reader import Readers, Seen, is_increasing, question, until
from tests.durability.stored import stored_log
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

ROUNDS = 8
STREAMS = 30


async def test_everything_shown_is_stored_whenever_the_process_is_killed(start_stack):
    moments = random.Random(20261107)
    with (
        SimulatorProcess("vllm", pace=120) as first,
        SimulatorProcess("llamacpp", pace=120) as other,
    ):
        stack = start_stack(
            engine_nodes=[f"a=vllm+{first.url}", f"b=llamacpp+{other.url}"],
            env={"HEARTBEAT_SECONDS": "0.5"},
        )
        key, gateway = stack.api_key(), stack.gateway()
        shown = broken = 0
        for number in range(ROUNDS):
            if number:
                gateway.start_again()
            seen = await _round(stack, key, number, moments.uniform(0.15, 0.9))
            broken += sum(bool(reader.broken) for reader in seen)
            for reader in seen:
                shown += _assert_stored(stack, reader)
    assert broken > ROUNDS * STREAMS // 2, "most streams must be under way when the process dies"
    assert shown > ROUNDS * STREAMS * 5, f"only {shown} tokens were shown in all"


async def _round(stack: Stack, key: str, number: int, moment: float) -> list[Seen]:
    seen = [Seen(question(f"Round {number}, stream {n}", 150)) for n in range(STREAMS)]
    async with Readers(stack.gateway().url, key) as readers:
        asking = [asyncio.create_task(readers.ask(r.messages, seen=r)) for r in seen]
        await until(lambda: sum(bool(reader.tokens) for reader in seen) >= STREAMS // 2)
        await asyncio.sleep(moment)
        await asyncio.to_thread(_kill_within_a_flush if number % 2 else _kill, stack)
        await asyncio.gather(*asking)
    return seen


def _kill(stack: Stack) -> None:
    stack.gateway().kill()


def _kill_within_a_flush(stack: Stack) -> None:
    """Hold its flush up, kill the process, and see to it that this flush is never committed."""
    with psycopg.connect(stack.database_url) as rival:
        rival.execute("LOCK TABLE streaming_tokencheckpoint IN SHARE MODE")
        time.sleep(0.2)
        stack.gateway().kill()
        rival.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'unbroken journal%'"
        )


def _assert_stored(stack: Stack, reader: Seen) -> int:
    """Each event's text is the stored text of exactly the tokens it stands for."""
    if not reader.tokens:
        return 0
    log = stored_log(stack, reader.session_id)
    seqs = [seq for seq, _ in reader.tokens]
    assert is_increasing(seqs)
    before = 0
    for seq, text in reader.tokens:
        assert log.between(before, seq) == text
        before = seq
    assert reader.answer.text.startswith(log.text)
    return before
