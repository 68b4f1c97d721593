"""The dialect on the real server: what a probe learns, its figures, aborts and the reset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from streaming.core.chunks import Sampling
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.core.nodes import NodeOptions
from streaming.engines.base import Capabilities, Dialect, Generation
from streaming.engines.http import EngineClient, engine_client
from streaming.engines.registry import dialect_for
from tests.durability.reader import until
from tests.real_vllm.server import CONTEXT_TOKENS, MODEL, VLLMServer

SECONDS = 30.0
CAN = {
    "dev": Capabilities(
        token_ids=True, abort=True, figures=True, prefix_caching=True, reset_cache=True
    ),
    "plain": Capabilities(token_ids=True, figures=True, prefix_caching=True),
}
MESSAGES = [{"role": "user", "content": "Write a long story about a lighthouse keeper."}]


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    client = engine_client()
    yield client
    await client.aclose()


def dialect_of(server: VLLMServer, client: EngineClient) -> Dialect:
    return dialect_for("vllm", client, server.url, NodeOptions())


class Asking:
    """A long answer, read in the background until it ends or is left."""

    def __init__(self, dialect: Dialect, prompt: list[int], request_id: str = "s-1") -> None:
        self._dialect = dialect
        self._generation = Generation(
            model=MODEL, prompt=prompt, max_tokens=1500, min_tokens=1500,
            sampling=Sampling(0), request_id=request_id,
        )  # fmt: skip
        self.begun = asyncio.Event()

    async def __aenter__(self) -> asyncio.Task[None]:
        self._task = asyncio.create_task(self._read())
        async with asyncio.timeout(SECONDS):
            await self.begun.wait()
        return self._task

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        async with aclosing(self._dialect.generate(self._generation)) as stream:
            async for _ in stream:
                self.begun.set()


@pytest.mark.parametrize("name", ["dev", "plain"])
async def test_a_probe_learns_what_the_server_can_do(
    servers: dict[str, VLLMServer], client: EngineClient, name: str
) -> None:
    dialect = dialect_of(servers[name], client)
    report = await dialect.probe(SECONDS)
    assert report.models == {MODEL: CONTEXT_TOKENS}
    assert report.can == CAN[name]
    figures = report.figures
    assert figures is not None
    assert (figures.running, figures.waiting) == (0, 0)
    assert figures.kv_usage == 0
    assert figures.block_tokens
    assert figures.kv_tokens
    assert figures.kv_tokens % figures.block_tokens == 0
    assert f'kv_cache_size_tokens="{figures.kv_tokens}"' in servers[name].get("/metrics").text


async def test_figures_move_with_a_request(
    servers: dict[str, VLLMServer], client: EngineClient
) -> None:
    dialect = dialect_of(servers["plain"], client)
    prompt = await dialect.render(MODEL, MESSAGES)
    idle = await dialect.figures(SECONDS)
    async with Asking(dialect, prompt):
        busy = await dialect.figures(SECONDS)
        assert (busy.running, busy.waiting) == (1, 0)
        assert busy.kv_usage
        assert busy.progress is not None
        assert idle.progress is not None
        assert busy.progress >= idle.progress + len(prompt)
    await until(lambda: servers["plain"].running() == 0, SECONDS)
    left = await dialect.figures(SECONDS)
    assert left.kv_usage == 0


async def test_an_abort_by_id_really_aborts(
    servers: dict[str, VLLMServer], client: EngineClient
) -> None:
    dialect = dialect_of(servers["dev"], client)
    prompt = await dialect.render(MODEL, MESSAGES)
    async with (
        Asking(dialect, prompt, "s-7-1") as reading,
        Asking(dialect, prompt, "s-7-2") as other,
    ):
        assert servers["dev"].running() == 2
        assert await dialect.abort(["s-7-1"])
        with pytest.raises(AttemptFailed) as failure:
            await asyncio.wait_for(reading, SECONDS)
        assert failure.value.cause is Cause.ABORTED
        # Its figures follow a step later.
        await until(lambda: servers["dev"].running() == 1, SECONDS)
        assert not other.done()
    await until(lambda: servers["dev"].running() == 0, SECONDS)


async def test_a_server_without_an_abort_call_says_so(
    servers: dict[str, VLLMServer], client: EngineClient
) -> None:
    dialect = dialect_of(servers["plain"], client)
    assert not await dialect.abort(["s-8-1"])
    assert not await dialect.reset_cache()


async def test_the_cache_is_reset_and_refuses_while_it_works(
    servers: dict[str, VLLMServer], client: EngineClient
) -> None:
    dialect = dialect_of(servers["dev"], client)
    prompt = await dialect.render(MODEL, MESSAGES)
    async with Asking(dialect, prompt):
        assert not await dialect.reset_cache()
    await until(lambda: servers["dev"].running() == 0, SECONDS)
    assert await dialect.reset_cache()


@pytest.mark.parametrize("name", ["dev", "plain"])
async def test_a_pulse(servers: dict[str, VLLMServer], client: EngineClient, name: str) -> None:
    await dialect_of(servers[name], client).pulse(MODEL, SECONDS)


async def test_a_frozen_core_has_no_pulse_but_health_and_figures(
    servers: dict[str, VLLMServer], client: EngineClient
) -> None:
    server = servers["dev"]
    dialect = dialect_of(server, client)
    server.core.suspend()
    try:
        assert server.get("/health").status_code == 200
        before = await dialect.figures(SECONDS)
        with pytest.raises(AttemptFailed) as failure:
            await dialect.pulse(MODEL, 2.0)
        assert failure.value.cause is Cause.STALLED
        assert (await dialect.figures(SECONDS)).progress == before.progress
    finally:
        server.core.resume()
    await dialect.pulse(MODEL, SECONDS)
    await until(lambda: server.running() == 0, SECONDS)


async def test_characters_of_several_tokens(
    servers: dict[str, VLLMServer], client: EngineClient
) -> None:
    dialect = dialect_of(servers["dev"], client)
    moon = [10813, 230, 243]
    assert servers["dev"].detokenized(moon) == "🌙"
    assert [await dialect.ends_whole(moon[:n]) for n in (1, 2, 3)] == [False, False, True]
    assert await dialect.count_tokens(MODEL, "🌙") == 3


async def test_a_prompt_that_is_too_long_is_the_clients_mistake(
    servers: dict[str, VLLMServer], client: EngineClient
) -> None:
    dialect = dialect_of(servers["dev"], client)
    generation = Generation(
        model=MODEL, prompt=[100] * (CONTEXT_TOKENS + 1), max_tokens=5, min_tokens=0,
        sampling=Sampling(0), request_id="s-9-1",
    )  # fmt: skip
    with pytest.raises(RejectedByEngine, match="context"):
        await anext(dialect.generate(generation))
