"""The attributor on a real database, over engines that are really killed and frozen."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import socket
import weakref
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from streaming.conf import conf
from streaming.core.failures import AttemptFailed, Cause
from streaming.core.nodes import NodeOptions
from streaming.engines.base import Figures
from streaming.engines.vllm import VLLM
from streaming.fleet.attribution import Attributor
from streaming.fleet.evidence import probe_found
from streaming.fleet.nodes import Fleet, Health, Node
from tests.attribution.edges import Edges, dcgm_page
from tests.durability.reader import until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

ADDRESS_OF_NOBODY = "http://127.0.0.1:9"


class World:
    """Nodes, and sessions with one attempt each, as a gateway process would have them."""

    def __init__(self, stack: Stack, pool: AsyncConnectionPool) -> None:
        self.stack = stack
        self.fleet = Fleet()
        self.told: list[tuple[str, str, str]] = []
        self.attributor = Attributor(self.fleet, pool, lambda *told: self.told.append(told))

    def node(self, url: str = ADDRESS_OF_NOBODY, *, streams: int = 0, **options: str) -> Node:
        number = len(self.fleet.nodes) + 1
        node = Node(
            number,
            f"gpu-{number}",
            url,
            VLLM.__new__(VLLM),  # the attributor asks the engine nothing
            NodeOptions.parse(options),
            health=Health.UP,
        )
        node.in_flight = streams
        self.fleet.nodes[number] = node
        return node

    def session(
        self, *, state: str = "recovering", number: int = 1, id: UUID | None = None
    ) -> UUID:
        """A session whose attempt ``number`` has just failed."""
        if id is None:
            id = uuid4()
            self.stack.sql(
                "INSERT INTO streaming_streamsession (id, reference, tenant_id, end_user, request_id,"
                " protocol, model, model_requested, request, state, finish_reason, error_code, cause,"
                " evidence, on_disconnect, completion_tokens, discarded_tokens,"
                " failovers, created_at) SELECT %s, 'AAAAAAA', t.id, '', '', 'sse', 'm', 'm', '',"
                " %s, '', '', '', '{}', 'suspend', 0, 0, 0, now() FROM streaming_tenant t",
                id,
                state,
            )
        self.stack.sql(
            "INSERT INTO streaming_attempt (session_id, number, epoch, node_name, engine_request_id,"
            " seam_grade, seam_note, started_at, end_reason, end_detail, discarded_tokens)"
            " VALUES (%s, %s, 1, 'gpu-1', '', %s, '', now(), '', '', 0)",
            id, number, "exact" if number > 1 else "",
        )  # fmt: skip
        return id

    def fails(
        self, node: Node, session_id: UUID, failure: AttemptFailed, silence: float = 0
    ) -> None:
        """As the runner tells it: the attempt is not in flight any more."""
        node.in_flight = max(node.in_flight - 1, 0)
        self.attributor.failed(node, session_id, 1, failure, silence)

    def causes(self) -> list[str]:
        return [row[0] for row in self.stack.sql("SELECT cause FROM streaming_attempt")]

    def evidence(self, session_id: UUID) -> dict:
        query = "SELECT evidence FROM streaming_attempt WHERE session_id = %s AND number = 1"
        return self.stack.sql(query, session_id)[0][0]

    async def all_have(self, cause: str, seconds: float = 10) -> None:
        await until(lambda: set(self.causes()) == {cause}, seconds)


@pytest.fixture
async def world(start_stack, settings):
    settings.STREAMING = dataclasses.replace(
        conf(), health_timeout=0.5, engine_connect_timeout=0.3
    )  # fmt: skip
    stack = start_stack(gateways=0)
    stack.api_key()
    async with AsyncConnectionPool(
        stack.database_url,
        min_size=1,
        max_size=2,
        kwargs={"autocommit": True},
        open=False,
        timeout=2,
    ) as pool:
        made = World(stack, pool)
        made.attributor.start()
        yield made
        await made.attributor.stop()


RESET = AttemptFailed(Cause.RESET, "ClientOSError: [Errno 104] Connection reset by peer")
STALLED = AttemptFailed(Cause.STALLED, "no data for 6.0 s")


async def test_a_killed_engine(world):
    with SimulatorProcess("vllm") as engine:
        node = world.node(engine.url, streams=5)
        sessions = [world.session() for _ in range(5)]
        world.session(id=sessions[0], number=2)  # it goes on elsewhere already
        engine.kill()
        for session_id in sessions:
            world.fails(node, session_id, RESET)
        # What a probe makes of it; the words are those of the HTTP client.
        world.fleet.mark(node, Health.DOWN, "refused: Cannot connect to host [Connect call failed]")
        await until(lambda: world.causes().count("engine_crash") == 5)
    found = world.evidence(sessions[0])
    assert (found["probe"], found["siblings_failed"], found["siblings_alive"]) == ("refused", 4, 0)
    assert (found["errno"], found["seen"]) == ("ECONNRESET", "connection_reset")
    assert "nobody listens" in found["because"]
    told = [("engine_crash", "exact", "gpu-1")] + 4 * [("engine_crash", "none", "gpu-1")]
    await until(lambda: sorted(world.told) == told)


async def test_a_stopped_engine_is_told_from_a_host_that_is_away(world):
    """Neither says anything; the kernel of the first takes connections."""
    with (
        SimulatorProcess("vllm") as engine,
        socket.create_server(("127.0.0.1", 0), backlog=0) as deaf,
    ):
        engine.stop()
        frozen = world.node(engine.url)
        # A full backlog: whoever knocks gets no answer at all, as from behind a cut cable.
        away_port = deaf.getsockname()[1]
        knocks = [socket.socket() for _ in range(4)]
        for knock in knocks:
            knock.setblocking(False)
            knock.connect_ex(("127.0.0.1", away_port))
        away = world.node(f"http://127.0.0.1:{away_port}")
        silent, lost = world.session(), world.session()
        for node, session_id in ((frozen, silent), (away, lost)):
            world.fleet.mark(node, Health.DOWN, "no answer in time")
            world.fails(node, session_id, STALLED, 6.0)
        await until(lambda: sorted(world.causes()) == ["engine_frozen", "network_partition"])
        for knock in knocks:
            knock.close()
    assert world.evidence(silent)["because"] == "It accepts connections and answers nobody."
    assert world.evidence(silent)["silence"] == 6.0
    assert world.evidence(lost)["probe"] == "unreachable"


async def test_a_hedge_that_won_over_a_slow_node_is_no_interruption(world):
    slow, frozen = world.node(), world.node()
    one, other = world.session(), world.session()
    world.fleet.mark(frozen, Health.SUSPECT, "its streams are silent")
    for node, session_id in ((slow, one), (frozen, other)):
        world.attributor.failed(node, session_id, 1, STALLED, 1.2, overtaken=True)
    await until(lambda: "engine_frozen" in world.causes() or "engine_crash" in world.causes())
    assert world.evidence(one) == {}
    assert world.evidence(other)["seen"] == "stalled"


async def test_the_probe_is_waited_for(world):
    node = world.node()
    session_id = world.session()
    world.fleet.mark(node, Health.SUSPECT, "a stream failed")
    world.fails(node, session_id, RESET)
    await asyncio.sleep(1.2)
    assert world.causes() == [""], "it has not spoken yet"
    world.fleet.mark(node, Health.UP)
    await world.all_have("network_reset")


async def test_a_counter_that_began_anew_is_another_process(world):
    node = world.node()
    node.figures = Figures(asked_at=1.0, progress=5000)
    world.fails(node, world.session(), AttemptFailed(Cause.CLOSED, "without a finish"))
    node.figures = Figures(asked_at=2.0, progress=12)
    await world.all_have("engine_crash")
    await until(lambda: world.told == [("engine_crash", "none", "gpu-1")])


async def test_the_gpu_is_asked(world):
    async with Edges() as edges:
        node = world.node(gpu_metrics=f"{edges.url}/metrics#0")
        await world.attributor.exporters._read(node)
        edges.page = dcgm_page(xid0=48, ecc0=1)
        session_id = world.session()
        world.fails(node, session_id, AttemptFailed(Cause.ENGINE_ERROR, "EngineDeadError"))
        await world.all_have("engine_ecc")
        assert world.evidence(session_id)["xids"] == [48]


async def test_what_was_wanted_is_left_alone(world):
    node = world.node()
    rehearsed, reset = world.session(), world.session()
    world.fails(node, rehearsed, AttemptFailed(Cause.REHEARSAL))
    world.fails(node, reset, AttemptFailed(Cause.ENGINE_ERROR, "odd"))
    await until(lambda: sorted(world.causes()) == ["", "engine_crash"])
    assert world.evidence(rehearsed) == {}


async def test_rows_that_come_late_and_rows_that_are_locked(world):
    node = world.node()
    early, locked, late = world.session(), world.session(), uuid4()
    with psycopg.connect(world.stack.database_url) as other:
        other.execute("SELECT 1 FROM streaming_attempt WHERE session_id = %s FOR UPDATE", (locked,))
        for session_id in (early, locked, late):
            world.fails(node, session_id, AttemptFailed(Cause.ENGINE_ERROR, "out of memory"))
        await until(lambda: sorted(world.causes()) == ["", "engine_oom"])
    await until(lambda: world.causes() == ["engine_oom"] * 2)
    world.session(id=late)
    await until(lambda: world.causes() == ["engine_oom"] * 3)
    await until(lambda: len(world.told) == 3)


async def test_hundreds_at_once(world):
    node = world.node(streams=500)
    world.session()
    world.stack.sql(
        "INSERT INTO streaming_attempt (session_id, number, epoch, node_name, engine_request_id,"
        " seam_grade, seam_note, started_at, end_reason, end_detail, discarded_tokens)"
        " SELECT gen_random_uuid(), 1, 1, 'gpu-1', '', '', '', now(), '', '', 0"
        " FROM generate_series(1, 499)"
    )
    for (session_id,) in world.stack.sql("SELECT session_id FROM streaming_attempt"):
        world.fails(node, session_id, AttemptFailed(Cause.STALLED, "silent"), 3.0)
    await world.all_have("engine_frozen")
    await until(lambda: len(world.told) == 500)
    assert world.evidence(session_id)["siblings_failed"] == 499


async def test_a_database_that_is_away_for_a_while(start_stack, settings):
    stack = start_stack(gateways=0, private_postgres=True)
    stack.api_key()
    async with AsyncConnectionPool(
        stack.database_url, min_size=1, max_size=2, kwargs={"autocommit": True}, open=False, timeout=0.5,
        check=AsyncConnectionPool.check_connection, reconnect_timeout=1,
    ) as pool:  # fmt: skip
        world = World(stack, pool)
        world.attributor.start()
        session_id = world.session()
        stack.stop_postgres()
        world.fails(world.node(), session_id, AttemptFailed(Cause.BUSY, "HTTP 429: slow down"))
        await until(lambda: len(world.attributor._waiting) == 1)
        await asyncio.sleep(1)
        stack.start_postgres()
        await world.all_have("rate_limit", 20)
        await world.attributor.stop()


async def test_a_session_that_ends_before_its_last_failure_is_judged(world):
    node = world.node()
    session_id = world.session()
    failure = AttemptFailed(Cause.RESET, "Connection reset by peer")
    world.fails(node, session_id, failure)
    cause, evidence = world.attributor.end_cause(session_id, "failover_exhausted", 1, failure)
    assert cause == "network_reset", "what one stream saw; no more is known at once"
    assert evidence["error"] == "failover_exhausted"
    world.fleet.mark(node, Health.DOWN, "refused: …")
    await world.all_have("engine_crash")  # its end is not even stored yet
    world.stack.sql(
        "UPDATE streaming_streamsession SET state = 'failed', cause = %s, error_code = 'x'", cause
    )
    query = "SELECT cause, evidence->>'probe' FROM streaming_streamsession"
    await until(lambda: world.stack.sql(query) == [("engine_crash", "refused")])
    await until(lambda: len(world.told) == 1)


async def test_a_session_that_ends_after_it(world):
    node = world.node()
    session_id = world.session()
    failure = AttemptFailed(Cause.RESET, "Connection reset by peer")
    world.fails(node, session_id, failure)
    world.fleet.mark(node, Health.DOWN, "refused: …")
    await world.all_have("engine_crash")
    end_cause = world.attributor.end_cause
    assert end_cause(session_id, "no_healthy_node", 1, failure)[0] == "engine_crash"
    # Its end has a reason of its own, whatever failed before.
    assert end_cause(session_id, "answer_timeout", 1, failure)[0] == "timeout"
    assert end_cause(session_id, "client_stop")[0] == "client_stop"
    assert end_cause(session_id, "no_healthy_node")[0] == "timeout"
    rehearsed = AttemptFailed(Cause.REHEARSAL)
    assert end_cause(uuid4(), "failover_exhausted", 3, rehearsed)[0] == "unknown"


async def test_whoever_counts_may_fail(world):
    def broken(*told: str) -> None:
        raise RuntimeError("no metrics today")

    world.attributor._on_attributed = broken
    world.fails(world.node(), world.session(), AttemptFailed(Cause.ENGINE_ERROR, "odd"))
    await world.all_have("engine_crash")


async def test_a_process_that_ends_stores_what_it_knows(world):
    world.fails(world.node(), world.session(), AttemptFailed(Cause.ENGINE_ERROR, "out of memory"))
    await world.attributor.stop()
    assert world.causes() == ["engine_oom"]


async def test_no_stream_is_kept_in_memory(world):
    class Stream:
        """What the frames of a failed attempt hold."""

    def attempt() -> weakref.ref[Stream]:
        stream = Stream()
        try:
            raise AttemptFailed(Cause.RESET, "reset")
        except AttemptFailed as failure:
            world.fails(world.node(), uuid4(), failure)
        return weakref.ref(stream)

    seen = attempt()
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize(
    ("health", "reason", "found"),
    [
        (Health.UP, "", "up"),
        (Health.SUSPECT, "connection_reset", ""),
        (Health.UNKNOWN, "", ""),
        (Health.DOWN, "no answer in time", "no_answer"),
        (Health.DOWN, "bad_status: /health: HTTP 503", "error"),
        (Health.DOWN, "malformed_event: not of the expected shape", "error"),
        (Health.DOWN, "refused: ConnectTimeout: Cannot connect to host a:9 ssl:default"
         " [Connect call failed ('127.0.0.1', 9)]", "refused"),
        (Health.DOWN, "refused: ConnectTimeout: Connection timeout to host http://a:9/health", "unreachable"),
        (Health.DOWN, "refused: ConnectTimeout: Cannot connect to host a:9 ssl:default"
         " [Name or service not known]", "unreachable"),
    ],
)  # fmt: skip
def test_what_a_probe_found(health, reason, found):
    assert probe_found(health, reason).value == found
