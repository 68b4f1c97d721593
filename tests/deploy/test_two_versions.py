"""Two versions over one log: a migration under running streams, both versions at work, a rollback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from tests.billing.worker import Worker
from tests.delivery.story import Door, Story, outcome
from tests.deploy import next_version
from tests.durability.reader import Readers, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import ROOT, Gateway, Stack

LAST = {
    app: max(path.stem for path in (ROOT / app / "migrations").glob("0*.py"))
    for app in ("streaming", "billing")
}
TOKENS = 90
"""Three seconds at the engine's pace."""


@pytest.fixture
def engine() -> Iterator[SimulatorProcess]:
    with SimulatorProcess("vllm", pace=30) as engine:
        yield engine


@pytest.fixture
def stack(start_stack: Callable[..., Stack], engine: SimulatorProcess) -> Stack:
    nodes = [f"a=vllm+{engine.url}"]
    return start_stack(gateways=1, engine_nodes=nodes, env={"GRACE_SECONDS": "5"})


@pytest.fixture(scope="module")
def next_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next_version.make(tmp_path_factory.mktemp("next"))


class Crowd:
    """Readers who read on, whatever happens, at one gateway after the other."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.stories: list[Story] = []
        self.reading: list[asyncio.Task[Story]] = []

    async def begin(self, urls: Sequence[str], what: str, count: int = 5) -> None:
        """Each has a few tokens when this returns."""
        for number in range(count):
            story = await self.door.create(urls[0], question(f"{what} {number}", TOKENS))
            self.stories.append(story)
            self.reading.append(asyncio.create_task(self.door.read_on(urls, story, 60)))
        begun = self.stories[-count:]
        await until(lambda: all(story.cursor > 3 for story in begun), 60)

    @property
    def is_reading(self) -> bool:
        return all(story.end is None for story in self.stories[-5:])

    async def end(self) -> None:
        await asyncio.gather(*self.reading)
        assert all(story.is_whole for story in self.stories), self.stories


async def in_thread(stack: Stack, *arguments: str, code: Path) -> str:
    return await asyncio.to_thread(stack.manage, *arguments, code=code)


async def settled(stack: Stack, code: Path) -> None:
    """By a worker of that version."""
    waiting = "SELECT count(*) FROM streaming_outboxmessage WHERE handled_at IS NULL"
    with Worker(stack, code=code) as worker:
        worker.settle(2)
        await until(lambda: stack.sql(waiting) == [(0,)], 60)


async def back(stack: Stack, code: Path) -> None:
    for app, name in LAST.items():
        await in_thread(stack, "migrate", app, name, code=code)


async def test_two_versions_run_over_one_log(stack: Stack, engine, next_code: Path) -> None:
    old = stack.gateway()
    async with Door(stack.api_key()) as door, Readers(old.url, door.key) as readers:
        crowd = Crowd(door)
        plain = [
            asyncio.create_task(readers.ask(question(f"plain {number}", 4 * TOKENS)))
            for number in range(3)
        ]
        # Expand: the schema grows under the streams of the version that does not know of it.
        await crowd.begin([old.url], "expand")
        await in_thread(stack, "migrate", code=next_code)
        # Both at work; each goes on with what the other began.
        new: Gateway = await asyncio.to_thread(stack.start_gateway, code=next_code)
        assert all(seen.is_whole for seen in await asyncio.gather(*plain))
        for dying, other in ((old, new), (new, old)):
            urls = [dying.url, other.url]
            await crowd.begin(urls, f"begun on {dying.name}")
            await crowd.begin(urls[::-1], f"begun beside {dying.name}")
            dying.kill()
            await crowd.end()
            await asyncio.to_thread(dying.start_again)
        owners = stack.sql("SELECT count(DISTINCT owner_id) FROM streaming_streamsession")
        assert owners == [(2,)] or owners[0][0] > 2
        assert stack.sql("SELECT DISTINCT next_count FROM streaming_tokencheckpoint") == [(7,)]
        # What the worker of the one settles is right for the other.
        await settled(stack, next_code)
        await in_thread(stack, "verify_audit", code=ROOT)
        # Rollback: the new version goes, then its columns, under streams of the old one.
        new.terminate()
        await asyncio.to_thread(new.wait)
        await crowd.begin([old.url], "rollback")
        await back(stack, next_code)
        await crowd.end()
    await settled(stack, ROOT)
    for story in crowd.stories:
        assert outcome(stack, story).state == "completed"
    ((settled_sessions,),) = stack.sql("SELECT count(*) FROM billing_usagerecord")
    assert settled_sessions == len(crowd.stories) + len(plain)
    assert engine.stats()["wrong_prefixes"] == 0
    await in_thread(stack, "verify_audit", code=ROOT)
    for gateway in (old, new):
        assert "Traceback" not in gateway.log


async def test_a_migration_that_has_to_wait_keeps_no_stream_waiting(
    stack: Stack, next_code: Path
) -> None:
    """A backup reads every table for as long as it takes; a migration queues behind it."""
    url = stack.gateway().url
    tables = [
        name for (name,) in stack.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    ]
    with psycopg.connect(stack.database_url, application_name="backup") as backup:
        backup.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS SHARE MODE")
        with pytest.raises(AssertionError, match=r"oldest transactions are\n.*backup"):
            await in_thread(stack, "migrate", "--patience", "0", code=next_code)
        logs = [stack.directory / f"migrate-{number}.log" for number in range(2)]
        migrations = [migrating(stack, next_code, log) for log in logs]
        try:
            async with Door(stack.api_key()) as door:
                await until(lambda: any(waits(log) for log in logs), 60)
                crowd = Crowd(door)
                await crowd.begin([url], "while it waits")
                await crowd.end()
                assert all(migration.poll() is None for migration in migrations)
                await crowd.begin([url], "while it goes on")
                backup.rollback()
                # Two at once: the second finds nothing left to do.
                for migration in migrations:
                    assert await asyncio.to_thread(migration.wait, 60) == 0
                await crowd.end()
        finally:
            for migration in migrations:
                migration.kill()
                migration.wait()
    assert sum(log.read_text().count("streaming.") for log in logs) >= 1
    assert stack.sql("SELECT count(*) FROM streaming_nextthing") == [(0,)]
    assert "Traceback" not in stack.gateway().log


def migrating(stack: Stack, code: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "manage.py", "migrate"],
            cwd=code, env=stack.env(PYTHONUNBUFFERED="1"), stdout=output, stderr=output,
        )  # fmt: skip


def waits(log: Path) -> bool:
    return "tried again" in log.read_text()
