"""A real worker and a real beat: the schedule runs, and their silence is noticed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg_pool import AsyncConnectionPool

from gateway_project.celery import EVERY_SECONDS, app
from gateway_project.embedded.process import spawn
from streaming.runtime import sweepers
from streaming.runtime.sweepers import SweeperWatch
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import ROOT, Stack


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack(gateways=0) as stack:
        yield stack


@contextmanager
def celery(stack: Stack, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker or a beat, as ``serve`` starts it."""
    command = [sys.executable, "-m", "celery", "-A", "gateway_project.celery", "--quiet"]
    with (stack.directory / "celery.log").open("ab") as log:
        process = spawn(
            [*command, *arguments], env=stack.env(), cwd=ROOT, stdout=log, stderr=log,
            death_signal=signal.SIGKILL,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def worker(stack: Stack) -> Any:
    return celery(stack, "worker", "--pool=solo", "--without-gossip", "--without-mingle")


def beat(stack: Stack) -> Any:
    return celery(stack, "beat", f"--schedule={stack.directory}/schedule", "--pidfile=")


async def rows_until(stack: Stack, query: str, seconds: float = 40.0) -> list[tuple[Any, ...]]:
    """What the query returns, once it returns anything."""
    async with asyncio.timeout(seconds):
        while not (rows := stack.sql(query)):  # noqa: ASYNC110  others write it
            await asyncio.sleep(0.1)
    return rows


def test_every_task_of_the_schedule_exists():
    app.loader.import_default_modules()
    assert EVERY_SECONDS.keys() <= app.tasks.keys()
    for task, entry in app.conf.beat_schedule.items():
        assert entry["task"] == task
        # A paused worker must not find a queue of sweeps that are all the same.
        assert entry["options"]["expires"] == entry["schedule"]


async def test_the_sweep_runs_and_verifies(stack):
    with SimulatorProcess() as engine, worker(stack), beat(stack):
        ((node,),) = stack.sql(
            "INSERT INTO streaming_inferencenode (name, dialect, base_url, admin_state, source, weight,"
            " options, created_at, health, health_reason, models_served) VALUES ('a', 'vllm', %s,"
            " 'active', 'command', 1, '{}', now(), 'up', '', '[]') RETURNING id",
            engine.url,
        )
        stack.sql(
            "INSERT INTO streaming_attempt (session_id, number, epoch, node_id, node_name, reclaim,"
            " engine_request_id, seam_grade, seam_note, started_at, ended_at, end_reason, end_detail,"
            " discarded_tokens) VALUES (gen_random_uuid(), 1, 1, %s, 'a', 'pending', 'r-1', '', '',"
            " now(), now(), 'cancelled', '', 0)",
            node,
        )
        await rows_until(stack, "SELECT 1 FROM streaming_attempt WHERE reclaim = 'verified'")
        await rows_until(
            stack, "SELECT 1 FROM streaming_taskrun WHERE name = 'settle_abandoned_sessions'"
        )
        await rows_until(
            stack,
            "SELECT 1 FROM streaming_taskrun WHERE name = 'reclaim_kv_cache' AND runs > 1"
            " AND failures = 0 AND succeeded_at IS NOT NULL",
        )


@pytest.fixture
async def pool(stack: Stack) -> AsyncIterator[AsyncConnectionPool]:
    async with AsyncConnectionPool(
        stack.database_url, min_size=1, open=False, kwargs={"autocommit": True}
    ) as pool:
        yield pool


async def test_the_silence_of_worker_and_beat_is_noticed(stack, pool, monkeypatch, caplog):
    monkeypatch.setattr(sweepers, "SILENT_SECONDS", 5.0)
    monkeypatch.setattr(sweepers, "CHECK_SECONDS", 2.5)
    watch = SweeperWatch(pool, stack.redis_url)

    async def until_open(silent: str | None) -> None:
        """Check as a gateway does, until the open incident says who is silent (None: is closed)."""
        query = "SELECT data ->> 'silent' FROM streaming_incident WHERE closed_at IS NULL"
        async with asyncio.timeout(40):
            while True:
                await watch.check()
                found = [row[0] for row in stack.sql(query)]
                if found == ([] if silent is None else [silent]):
                    return
                await asyncio.sleep(0.1)

    await until_open("beat")  # neither has ever run
    with beat(stack), worker(stack) as first:
        await until_open(None)
        os.kill(first.pid, signal.SIGSTOP)
        await until_open("worker")
        os.kill(first.pid, signal.SIGCONT)
        await until_open(None)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2  # once each, not with every look
    assert stack.sql("SELECT count(*) FROM streaming_incident") == [(2,)]


async def test_without_redis_the_queue_cannot_tell(pool, stack, monkeypatch):
    monkeypatch.setattr(sweepers, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(sweepers, "CHECK_SECONDS", 0.0)
    for url in ("", "redis://127.0.0.1:1/0"):
        await SweeperWatch(pool, url).check()
        query = (
            "UPDATE streaming_incident SET closed_at = now() WHERE closed_at IS NULL RETURNING data"
        )
        ((data,),) = stack.sql(query)
        assert (data["silent"], data["queue"]) == ("unknown", None)


@pytest.mark.parametrize(
    ("former", "queue", "silent"),
    [(None, None, "unknown"), (3, 0, "beat"), (None, 3, ""), (3, 5, "worker"), (3, 3, "both")],
)
def test_who_is_silent(former, queue, silent):
    assert sweepers._who(former, queue) == silent
