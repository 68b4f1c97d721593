"""One attempt's stream handed from task to task, as hedging and migration do it."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings

import pytest

from streaming.core.failures import AttemptFailed
from tests.durability.reader import until
from tests.engines.client import LONG, generation

BOTH = pytest.mark.parametrize("name", ["vllm", "llamacpp"])


@pytest.fixture(autouse=True)
def no_complaints(caplog):
    """Neither warnings nor errors that only a log shows, such as those of a forgotten generator."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def asked(tokens: int = 900):
    return generation(LONG, model="sim-model", max_tokens=tokens)


@BOTH
async def test_first_in_one_task_the_rest_in_another(start, name):
    _, dialect = start(name, pace=500)
    stream = dialect.generate(asked(40))
    first = await asyncio.create_task(anext(stream))

    async def rest() -> list:
        return [chunk async for chunks in stream for chunk in chunks]

    chunks = first + await asyncio.create_task(rest())
    assert chunks[-1].finish_reason == "length"
    assert sum(len(chunk.token_ids) for chunk in chunks) == 40


@BOTH
async def test_closed_by_a_third_task(start, client, name):
    engine, dialect = start(name, pace=100)
    attempt = asked()
    stream = dialect.generate(attempt)
    await asyncio.create_task(anext(stream))

    begun = asyncio.Event()

    async def rest() -> None:
        async for _ in stream:
            begun.set()

    reader = asyncio.create_task(rest())
    await begun.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await asyncio.create_task(stream.aclose())
    await until(lambda: engine.stats()["running"] == 0)
    assert attempt.watch.facts()["state"] == "established"  # as it was when we left
    assert not client._connector._acquired  # type: ignore[union-attr]


@BOTH
async def test_closed_between_two_items(start, client, name):
    engine, dialect = start(name, pace=100)
    stream = dialect.generate(asked())
    await asyncio.create_task(anext(stream))
    await asyncio.create_task(stream.aclose())
    await until(lambda: engine.stats()["running"] == 0)
    assert not client._connector._acquired  # type: ignore[union-attr]


@BOTH
async def test_closed_before_its_first_item(start, client, name):
    engine, dialect = start(name)
    engine.set_fault(kind="freeze_engine")
    stream = dialect.generate(asked())
    first = asyncio.create_task(anext(stream))
    await until(lambda: engine.stats()["waiting"] == 1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.create_task(stream.aclose())
    await until(lambda: engine.stats()["waiting"] == 0)
    assert not client._connector._acquired  # type: ignore[union-attr]


@BOTH
async def test_a_failure_seen_by_the_second_task(start, client, name):
    engine, dialect = start(name, pace=100)
    engine.set_fault(kind="reset", at_token=30)
    stream = dialect.generate(asked())
    await asyncio.create_task(anext(stream))

    async def rest() -> None:
        async for _ in stream:
            pass

    with pytest.raises(AttemptFailed):
        await asyncio.create_task(rest())
    await asyncio.create_task(stream.aclose())
    assert not client._connector._acquired  # type: ignore[union-attr]
