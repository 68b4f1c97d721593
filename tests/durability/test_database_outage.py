"""PostgreSQL goes away under load: readers hear from us, see nothing that could be lost, and then the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx
import pytest

from tests.durability.reader import Readers, Seen, question, until
from tests.durability.stored import stored_log
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

STREAMS = 20
# A token may be on its way to the reader when the database stops.
UNDER_WAY = 0.4


@pytest.fixture(scope="module")
def engine():
    with SimulatorProcess("vllm", pace=40) as engine:
        yield engine


@pytest.fixture
def stack(start_stack, engine):
    return start_stack(
        private_postgres=True,
        engine_nodes=[f"a=vllm+{engine.url}"],
        env={"KEEPALIVE_SECONDS": "1"},
    )


def _all_streaming(seen: list[Seen]) -> Callable[[], bool]:
    return lambda: all(reader.tokens for reader in seen)


@pytest.mark.parametrize(
    ("kill", "seconds"),
    [
        (False, 4.0),
        (True, 5.0),
        pytest.param(True, 20.0, marks=pytest.mark.soak),
        pytest.param(False, 20.0, marks=pytest.mark.soak),
    ],
)
async def test_an_outage_under_load(stack: Stack, kill: bool, seconds: float) -> None:
    key = stack.api_key()
    seen = [Seen(question(f"Outage {number}", 120)) for number in range(STREAMS)]
    async with Readers(stack.gateway().url, key) as readers:
        asking = [asyncio.create_task(readers.ask(r.messages, seen=r)) for r in seen]
        await until(_all_streaming(seen))
        began = time.monotonic()
        await asyncio.to_thread(stack.stop_postgres, kill=kill)
        stopped = time.monotonic()
        await asyncio.sleep(seconds / 2)
        statuses = await _statuses(stack, key)
        await asyncio.sleep(max(0.0, stopped + seconds - time.monotonic()))
        ended = time.monotonic()
        stack.start_postgres()  # not in a thread: it would die with that
        async with asyncio.timeout(30):
            await asyncio.gather(*asking)
    assert statuses == {"/healthz": 200, "/readyz": 503, "new": 503}
    assert [reader.trouble for reader in seen if not reader.is_whole] == []
    for reader in seen:
        shown = [at for at in reader.token_times if stopped + UNDER_WAY < at < ended]
        assert not shown, "tokens were shown that the database could not have"
        alive = [at for at, comment in reader.comments if began < at < ended]
        assert len(alive) >= int(seconds) - 1
        assert stored_log(stack, reader.session_id).text == reader.text
    states = stack.sql("SELECT state, count(*) FROM streaming_streamsession GROUP BY state")
    assert states == [("completed", STREAMS)]
    doubled = stack.sql(
        "SELECT session_id, kind, seq, count(*) FROM streaming_sessionevent"
        " GROUP BY session_id, kind, seq HAVING count(*) > 1"
    )
    assert doubled == []
    ended_once = stack.sql(
        "SELECT count(*), count(DISTINCT session_id) FROM streaming_outboxmessage"
        " WHERE kind = 'session_ended'"
    )
    assert ended_once == [(STREAMS, STREAMS)]


async def _statuses(stack: Stack, key: str) -> dict[str, int]:
    url = stack.gateway().url
    body = {"model": "sim-model", "messages": question("New", 5), "stream": True}
    async with httpx.AsyncClient(timeout=10, headers={"authorization": f"Bearer {key}"}) as client:
        alive, ready, new = await asyncio.gather(
            client.get(f"{url}/healthz"),
            client.get(f"{url}/readyz"),
            client.post(f"{url}/v1/chat/completions", json=body),
        )
    if new.status_code == 503:
        assert new.json()["error"]["code"] == "journal_unavailable"
    return {
        "/healthz": alive.status_code,
        "/readyz": ready.status_code,
        "new": new.status_code,
    }


async def test_ready_again_after_an_outage_without_load(stack: Stack) -> None:
    """Nobody writes, and still the journal comes back: our lock hangs on its connection."""
    await asyncio.to_thread(stack.stop_postgres)
    stack.start_postgres()
    await until(lambda: _locked(stack))
    async with httpx.AsyncClient() as client:
        assert (await client.get(stack.gateway().url + "/readyz")).status_code == 200


def _locked(stack: Stack) -> bool:
    """Whether the gateway process holds the advisory lock on its instance id."""
    return stack.sql(
        "SELECT count(*) FROM pg_locks l JOIN streaming_gatewayinstance i ON l.objid::bigint = i.id"
        " WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock'"
    ) == [(1,)]


async def test_crashes_during_flushes(start_stack) -> None:
    """Whether a flush was committed is unknown each time: nothing may be lost or written twice."""
    with SimulatorProcess("vllm", pace=150) as engine:
        stack = start_stack(private_postgres=True, engine_nodes=[f"a=vllm+{engine.url}"])
        key = stack.api_key()
        seen = [Seen(question(f"Crash {number}", 400)) for number in range(40)]
        async with Readers(stack.gateway().url, key) as readers:
            asking = [asyncio.create_task(readers.ask(r.messages, seen=r)) for r in seen]
            await until(_all_streaming(seen))
            for pause in (0.11, 0.23, 0.37):
                await asyncio.sleep(pause)
                await asyncio.to_thread(stack.stop_postgres, kill=True)
                stack.start_postgres()
            async with asyncio.timeout(40):
                await asyncio.gather(*asking)
        assert [reader.trouble for reader in seen if not reader.is_whole] == []
        for reader in seen:
            assert stored_log(stack, reader.session_id).text == reader.text
