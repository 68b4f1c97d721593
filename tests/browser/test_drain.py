"""An operator empties a node, and watches its streams move."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from playwright.async_api import Browser, expect

from tests.browser.desk import furnished, logged_in
from tests.durability.reader import Readers, Seen, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

pytestmark = pytest.mark.browser

PACE = 5
TOKENS = 3000
"""At that pace nobody sees the end of it, however long the browser takes."""
READERS = 6


@pytest.fixture
def fleet() -> Iterator[Stack]:
    with (
        SimulatorProcess("vllm", pace=PACE) as first,
        SimulatorProcess("llamacpp", pace=PACE) as second,
        furnished(f"node-a=vllm+{first.url}", f"node-b=llamacpp+{second.url}", sessions=0) as stack,
    ):
        yield stack


async def test_streams_of_a_drained_node_move_while_it_is_watched(
    browser: Browser, fleet: Stack
) -> None:
    async with (
        logged_in(browser, fleet, "operator") as board,
        logged_in(browser, fleet, "operator") as office,
        Readers(fleet.gateway().url, fleet.api_key()) as readers,
    ):
        await board.follow("Live board")
        nodes = board.page.locator('[data-rows="nodes"] tr')
        a, b = (nodes.filter(has_text=name) for name in ("node-a", "node-b"))
        await expect(a).to_contain_text("up")
        await expect(b).to_contain_text("up")
        seen = [Seen(question(f"Move {n}", TOKENS, "plain")) for n in range(READERS)]
        reading = [asyncio.create_task(readers.ask(one.messages, seen=one)) for one in seen]
        streams = "td:nth-child(4)"
        await expect(a.locator(streams)).not_to_have_text("0")
        await expect(board.page.locator('[data-figure="streaming"]')).to_have_text(str(READERS))

        await office.goto("/admin/streaming/inferencenode/")
        await office.choose("Drain: selected nodes", ["node-a"])
        await office.press("Yes, I’m sure")

        await expect(a).to_contain_text("drain")
        await expect(a.locator(streams)).to_have_text("0")
        await expect(b.locator(streams)).to_have_text(str(READERS))
        await expect(a).to_contain_text("drained")

        # Each of them reads on, and what it has is what it would have been.
        had = [len(one.tokens) for one in seen]
        await until(lambda: all(len(one.tokens) > n for one, n in zip(seen, had, strict=True)), 60)
        for one, task in zip(seen, reading, strict=True):
            assert not task.done(), one.trouble
            assert one.answer.text.startswith(one.text)
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
