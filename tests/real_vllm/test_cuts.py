"""Answers of real vLLM that are cut at a chosen event, inside characters too; readers that leave.

Asked to continue ids that end inside a character, vLLM puts its whole prompt into the text of the
first event (vllm-project/vllm#48853). The gateway must never ask so, nor show such a text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.durability.reader import Readers, until
from tests.failover.client import Reply
from tests.real_vllm.conftest import Fleet, nodes_of, start_fleet
from tests.real_vllm.relay import Relay, Scissors
from tests.real_vllm.server import MODEL, VLLMServer
from tests.real_vllm.test_deaths import MAX_TOKENS, PROMPTS, unbroken
from tests.stack import Stack

SECONDS = 30.0
PROMPT = PROMPTS["emoji"]
# Events are tokens here. Within the first three characters of three tokens, and later.
CUTS = [0, 1, 2, 3, 4, 5, 7, 8, 11, 13, 17, 20, 35]


@pytest.fixture
async def cut_fleet(
    servers: dict[str, VLLMServer], start_stack: Callable[..., Stack]
) -> AsyncIterator[tuple[Fleet, Scissors]]:
    scissors = Scissors()
    relays = {name: Relay(server.port, scissors) for name, server in servers.items()}
    for relay in relays.values():
        await relay.__aenter__()
    try:
        urls = {name: relay.url for name, relay in relays.items()}
        yield await asyncio.to_thread(start_fleet, start_stack, servers, urls), scissors
    finally:
        for relay in relays.values():
            await relay.__aexit__(None, None, None)


async def test_answers_are_cut_inside_characters(
    cut_fleet: tuple[Fleet, Scissors], servers: dict[str, VLLMServer]
) -> None:
    fleet, scissors = cut_fleet
    ids, text = await asyncio.to_thread(unbroken, fleet, PROMPT)
    inside = 0
    for cut in CUTS:
        scissors.arm(cut)
        reply = await asyncio.to_thread(fleet.ask, PROMPT, max_tokens=MAX_TOKENS)
        assert scissors.has_cut
        check_cut(fleet, reply, (ids, text), cut)
        begun = await asyncio.to_thread(servers["plain"].detokenized, ids[:cut])
        inside += begun.endswith("\ufffd")
        for name in servers:
            await asyncio.to_thread(fleet.wait_for, name, "up")
    assert inside >= 5, "choose cuts inside characters"


def check_cut(fleet: Fleet, reply: Reply, expected: tuple[list[int], str], cut: int) -> None:
    assert reply.text == expected[1], f"cut after {cut}"
    log = fleet.log(reply)
    assert log.ids == expected[0]
    assert len(nodes_of(reply)) >= 2
    first = log.attempts_of_tokens.count(1)
    assert first <= cut
    assert not log.pieces or "\ufffd" not in log.text
    attempts = fleet.attempts(reply)
    assert attempts[-1].grade == ("exact" if first else "")


async def test_a_reader_that_leaves_lets_its_engine_go(
    servers: dict[str, VLLMServer], start_stack: Callable[..., Stack]
) -> None:
    fleet = await asyncio.to_thread(start_fleet, start_stack, servers)
    question = [{"role": "user", "content": "Write a long story about a lighthouse keeper."}]
    async with Readers(fleet.stack.gateway().url, fleet.key) as readers:
        await asyncio.gather(
            *(
                readers.ask(question, leave_after=3, model=MODEL, min_tokens=1000, max_tokens=1000)
                for _ in range(4)
            )
        )
    await until(lambda: sum(server.running() for server in servers.values()) == 0, SECONDS)
    # Because somebody left, not because an answer ended.
    states = "SELECT count(*) FROM streaming_streamsession WHERE state = 'suspended'"
    await until(lambda: fleet.stack.sql(states)[0][0] == 4, SECONDS)
    # What the sweep of the cache makes of it, by the figures of the real server.
    sweep = "from streaming.tasks import reclaim_kv_cache; reclaim_kv_cache()"
    left = "SELECT count(*) FROM streaming_attempt WHERE reclaim <> 'verified'"
    async with asyncio.timeout(SECONDS):
        while fleet.stack.sql(left)[0][0]:
            await asyncio.to_thread(fleet.stack.manage, "shell", "-c", sweep)
