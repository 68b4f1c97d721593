"""A node as a gateway has it, on a real engine and a real database, with attempts that can be ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from psycopg_pool import AsyncConnectionPool

from streaming.core.chunks import Sampling
from streaming.core.failures import AttemptFailed
from streaming.core.ids import uuid7
from streaming.core.nodes import NodeOptions
from streaming.engines.base import Generation
from streaming.engines.http import engine_client
from streaming.engines.registry import dialect_for
from streaming.fleet.nodes import Fleet, Health, Node
from streaming.runtime.reclaim import Reclaimer
from tests.durability.reader import question
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack


@pytest.fixture(scope="module")
def database() -> Iterator[Stack]:
    """A stack without processes."""
    with Stack(gateways=0) as stack:
        yield stack


@dataclass(slots=True, eq=False)
class Running:
    """An attempt of ours that runs."""

    session_id: UUID
    request_id: str
    task: asyncio.Task[None]
    is_under_way: asyncio.Event


@dataclass
class World:
    stack: Stack
    engine: SimulatorProcess
    fleet: Fleet
    node: Node
    reclaimer: Reclaimer
    told: list[tuple[str, float | None, str]] = field(default_factory=list)

    @property
    def reclaimed(self) -> list[float | None]:
        """Seconds from the end of an attempt to its being seen gone."""
        return [seconds for _, seconds, outcome in self.told if outcome == "verified"]

    async def begin(self, count: int = 1, tokens: int = 5000) -> list[Running]:
        """``count`` attempts that have their first token."""
        prompt = await self.node.dialect.render("sim-model", question("Go on", tokens))
        begun = [self._begin(prompt) for _ in range(count)]
        for running in begun:
            await running.is_under_way.wait()
        return begun

    def _begin(self, prompt: list[int]) -> Running:
        session_id = uuid7()
        under_way = asyncio.Event()
        generation = Generation(
            model="sim-model", prompt=prompt, max_tokens=5000, min_tokens=0,
            sampling=Sampling(temperature=0, seed=1), request_id=f"{session_id}-1",
        )  # fmt: skip

        async def read() -> None:
            async with aclosing(self.node.dialect.generate(generation)) as stream:
                async for _ in stream:
                    under_way.set()

        self.node.in_flight += 1
        task = asyncio.create_task(read())
        return Running(session_id, generation.request_id, task, under_way)

    async def end(self, attempts: list[Running], *, written: bool = True) -> None:
        """Close their connections; all are reported in the same instant."""
        for running in attempts:
            running.task.cancel()
        await asyncio.gather(*(running.task for running in attempts), return_exceptions=True)
        if written:
            self.write(attempts)
        for running in attempts:
            self.node.in_flight -= 1
            self.reclaimer.ended(self.node, running.session_id, 1, running.request_id, False)

    def write(self, attempts: list[Running]) -> None:
        """What the journal writes of their ends, a moment later."""
        self.stack.sql(
            "INSERT INTO streaming_attempt (session_id, number, epoch, node_id, node_name, reclaim,"
            " engine_request_id, seam_grade, seam_note, started_at, ended_at, end_reason, end_detail,"
            " discarded_tokens) SELECT id, 1, 1, %s, 'a', 'pending', id || '-1', '', '', now(), now(),"
            " 'cancelled', '', 0 FROM unnest(%s::uuid[]) AS s(id)",
            self.node.id, [running.session_id for running in attempts],
        )  # fmt: skip

    async def reconnect(self) -> None:
        """The engine was restarted: let the client find out that its connections are dead."""
        async with asyncio.timeout(10):
            while True:
                try:
                    await self.node.dialect.probe(5)
                except AttemptFailed:
                    continue
                return

    def outcomes(self) -> dict[str, int]:
        rows = self.stack.sql(
            "SELECT reclaim, count(*) FROM streaming_attempt WHERE node_id = %s GROUP BY 1",
            self.node.id,
        )
        return dict(rows)

    def open_incidents(self) -> list[tuple[str, str]]:
        return self.stack.sql(
            "SELECT kind, subject FROM streaming_incident WHERE node_id = %s AND closed_at IS NULL",
            self.node.id,
        )

    def count_calls(self, name: str) -> list[float]:
        """When ``name`` of the node's dialect is called from now on."""
        calls: list[float] = []
        method = getattr(self.node.dialect, name)

        async def counted(*arguments: object) -> object:
            calls.append(asyncio.get_running_loop().time())
            return await method(*arguments)

        setattr(self.node.dialect, name, counted)
        return calls


@pytest.fixture
async def make_world(database: Stack) -> AsyncIterator[Callable[..., object]]:
    """Make worlds: ``dialect``, ``can`` (abilities), ``options`` (of the node), engine options."""
    async with AsyncExitStack() as exits:

        async def make(
            dialect: str = "vllm",
            *,
            options: dict[str, str] | None = None,
            **engine_options: object,
        ) -> World:
            engine = exits.enter_context(SimulatorProcess(dialect, pace=50, **engine_options))
            client = engine_client()
            exits.push_async_callback(client.aclose)
            pool = await exits.enter_async_context(
                AsyncConnectionPool(
                    database.database_url, min_size=1, open=False, kwargs={"autocommit": True}
                )
            )
            parsed = NodeOptions.parse(options or {})
            ((node_id,),) = database.sql(
                "INSERT INTO streaming_inferencenode (name, dialect, base_url, admin_state, source,"
                " weight, options, created_at, health, health_reason, models_served)"
                " VALUES (%s, %s, %s, 'active', 'command', 1, '{}', now(), 'up', '', '[]') RETURNING id",
                engine.url, dialect, engine.url,
            )  # fmt: skip
            node = Node(
                node_id, f"node-{node_id}", engine.url,
                dialect_for(dialect, client, engine.url, parsed), parsed, health=Health.UP,
            )  # fmt: skip
            report = await node.dialect.probe(5)
            node.can, node.figures = report.can, report.figures
            fleet = Fleet()
            fleet.nodes[node_id] = node
            reclaimer = Reclaimer(fleet, pool)
            exits.push_async_callback(reclaimer.stop)
            world = World(database, engine, fleet, node, reclaimer)
            reclaimer.on_outcome = lambda *told: world.told.append(told)
            return world

        yield make
