"""Redis goes and comes back; and there may be none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import redis

from streaming.core.levels import Level
from streaming.core.limits import Ask, Turn
from streaming.core.local_limits import LocalLimits
from streaming.runtime.limit_scripts import PREFIX
from tests.durability.reader import Readers, Seen, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.metrics.scrape import scraped
from tests.stack import Stack


async def test_redis_is_away_for_a_while() -> None:
    """Streams don't notice, limits are kept by the process alone, and what was delivered is told."""
    with (
        SimulatorProcess("vllm", pace=40) as engine,
        Stack(engine_nodes=[f"a=vllm+{engine.url}"], private_redis=True) as stack,
    ):
        key = stack.api_key("acme")
        stack.sql("UPDATE streaming_tenant SET requests_per_minute = 3, tokens_per_minute = 100000")
        gateway = stack.gateway()
        async with Readers(gateway.url, key) as readers:
            streaming = Seen(question("through it all", 400))
            task = asyncio.create_task(readers.ask(streaming.messages, seen=streaming))
            await until(lambda: len(streaming.tokens) > 10, 30)
            stack.stop_redis()
            alone = "unbroken_limits_alone"
            await scraped(gateway.url, lambda found: found.value(alone) == 1, 30)
            statuses = [(await readers.ask(question(f"{n}", 2))).status for n in range(4)]
            assert statuses == [200, 200, 200, 429]  # as if nothing had been used
            stack.start_redis()
            await scraped(gateway.url, lambda found: found.value(alone) == 0, 30)
            with redis.Redis.from_url(stack.redis_url) as client:
                statuses = [(await readers.ask(question(f"{n}", 2))).status for n in range(4)]
                assert statuses == [200, 200, 200, 429]
                await task
                assert streaming.is_whole, streaming.trouble
                session = f"{PREFIX}session:{streaming.session_id}"
                total = streaming.answer.completion_tokens
                await until(lambda: int(client.hget(session, "seen") or 0) == total)
        assert gateway.log.count("Redis is away, limits") == 1


async def test_a_process_alone() -> None:
    with (
        SimulatorProcess("vllm", pace=100) as engine,
        Stack(engine_nodes=[f"a=vllm+{engine.url}"], env={"REDIS_URL": ""}) as stack,
    ):
        key = stack.api_key("acme")
        stack.sql("UPDATE streaming_tenant SET requests_per_minute = 4, streams_at_once = 1")
        async with Readers(stack.gateway().url, key) as readers:
            answers = await readers.ask_many(6, "alone", 5)
        assert sorted(seen.status for seen in answers) == [200] * 4 + [429] * 2
        whole = [seen for seen in answers if seen.status == 200]
        assert all(seen.is_whole for seen in whole)


def test_whose_turn_it_is() -> None:
    """By level; within a level in turns between end users; of one end user as they came."""
    limits = LocalLimits(slot_lease=10**7, place_lease=10**7, places=100, kept=10**9)

    def ask(number: int, user: str, level: Level = Level.STANDARD) -> Ask:
        return Ask(UUID(int=number), user, level, (("tenant.1", 1),), ())

    asks = [ask(number, "many") for number in range(1, 51)]
    asks += [ask(60, "few"), ask(61, "few"), ask(70, "late", Level.REALTIME)]
    asks += [ask(80, "cheap", Level.ECONOMY)]
    order: list[int] = []
    turns = limits.queue("1", asks, 0)
    waiting = {one.session_id for one in asks}
    holder = asks[turns.index(Turn.GRANTED)].session_id
    while holder is not None:
        order.append(holder.int)
        waiting.discard(holder)
        limits.release([(holder, True)])
        left = [one for one in asks if one.session_id in waiting]
        turns = limits.queue("1", left, 0)
        granted = [one for one, turn in zip(left, turns, strict=True) if turn is Turn.GRANTED]
        assert len(granted) <= 1
        holder = granted[0].session_id if granted else None
    assert order[:6] == [70, 1, 60, 2, 61, 3]
    assert order[-1] == 80
    assert [number for number in order if number < 51] == list(range(1, 51))


def test_a_full_queue_makes_room_for_who_has_less_in_it() -> None:
    limits = LocalLimits(slot_lease=10**7, place_lease=10**7, places=4, kept=10**9)
    slots = (("tenant.1", 1),)
    many = [Ask(UUID(int=n), "many", Level.STANDARD, slots, ()) for n in range(1, 7)]
    assert [turn.value for turn in limits.queue("1", many, 0)] == [1, 0, 0, 0, 0, -1]
    few = Ask(UUID(int=9), "few", Level.STANDARD, slots, ())
    assert limits.queue("1", [few], 0) == [Turn.WAITING]
    kept = [replace(ask, is_new=False) for ask in many]
    assert [turn.value for turn in limits.queue("1", kept, 0)] == [1, 0, 0, 0, -1, -1]
