"""Levels, coalescing and the score of connections, over a gateway and engines that are killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.durability.reader import until
from tests.engine_simulator.process import SimulatorProcess
from tests.metrics.scrape import scraped
from tests.quality.network import SlowNetwork
from tests.resume.events import Client, Reading, question
from tests.stack import Stack
from tests.websocket.talk import answer_to, chat, talk

PACE = 150
STORED = "SELECT level, variant, health FROM streaming_streamsession WHERE id = %s"


class House:
    """Two gateways; node ``a`` schedules by priority, ``b`` does not."""

    def __init__(self, stack: Stack, nodes: dict[str, SimulatorProcess]) -> None:
        self.stack = stack
        self.nodes = nodes
        self.key = stack.api_key(is_test=True)
        self.realtime = stack.api_key("fast", is_test=True, level="realtime")
        self.url = stack.gateway().url

    def priorities(self, session_id: str) -> list[tuple[str, Any]]:
        """(node, priority) of each attempt, in their order."""
        found = [
            (record["request_id"], name, record["priority"], "priority" in record["parameters"])
            for name, node in self.nodes.items()
            for record in node.stats()["requests"]
            if (record["request_id"] or "").startswith(session_id)
        ]
        return [(name, priority if sent else None) for _, name, priority, sent in sorted(found)]

    def stored(self, session_id: str) -> tuple[str, str, int | None]:
        return self.stack.sql(STORED, session_id)[0]


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with (
        SimulatorProcess("vllm", pace=PACE, priority_scheduling=True) as a,
        SimulatorProcess("vllm", pace=PACE) as b,
        Stack(
            gateways=2,
            engine_nodes=[f"a=vllm+{a.url}?priority=on&weight=100", f"b=vllm+{b.url}"],
            env={"HEALTH_INTERVAL": "0.3", "ALLOW_REHEARSAL": "1", "VARIANTS": "blue,green"},
        ) as stack,
    ):
        yield House(stack, {"a": a, "b": b})


@pytest.fixture(autouse=True)
def whole_fleet(house: House) -> None:
    for node in house.nodes.values():
        if not node.is_alive:
            node.restart()


@pytest.fixture
async def client(house: House) -> AsyncIterator[Client]:
    async with Client([gateway.url for gateway in house.stack.gateways], house.key) as client:
        yield client


def order_of(reading: Reading) -> list[int]:
    return [seq for seq, _ in reading.tokens]


async def test_fewer_events_and_the_same_text_over_a_dead_node(house: House, client: Client):
    """Readers of one answer, two of which want its tokens together; its node is killed.

    One of them reads at another gateway process, where less is known of what happens.
    """
    reading = await client.create(question("killed", 220))
    other, far = (Reading(reading.session_id, reading.messages) for _ in range(2))
    asked = [
        asyncio.create_task(client.read(reading)),
        asyncio.create_task(client.read(other, query="?coalesce=1000")),
        asyncio.create_task(client.read(far, query="?coalesce=1000", gateway=1)),
    ]
    await until(lambda: reading.seq >= 60, 20)
    (node,) = [node for node in house.nodes.values() if node.stats()["running"]]
    node.kill()
    await asyncio.wait_for(asyncio.gather(*asked), 30)
    for one in (reading, other):
        one.must_be_whole()
        seam = next(data for name, data in one.controls if name == "recovering")
        assert seam["seq"] in order_of(one), "what was held back was sent before it"
        names = [name for name, _ in one.controls]
        assert names.index("recovering") < names.index("recovered")
    far.must_be_whole()
    assert len(far.tokens) < len(reading.tokens) / 3
    assert len(other.tokens) < len(reading.tokens) / 3
    assert len(other.tokens) < 30


async def test_the_first_token_is_not_held(house: House):
    async with talk(
        f"{house.stack.gateway().websocket_url}/ws/chat/?coalesce=1000", house.key
    ) as mine:
        request = chat("first", 300)
        followed = await mine.begin(request)
        await mine.read_until(lambda: followed.end is not None, 30)
        assert followed.text == answer_to(request)
        seqs = [message["seq"] for message in mine.log if message["type"] == "token"]
        assert seqs[0] < seqs[1] - seqs[0], "the first token alone, the others together"
        await mine.say("ack", session=followed.opening["session"], seq=followed.cursor)
        assert followed.opening["level"] == "standard"


async def test_wishes_in_the_middle_and_acknowledgements(house: House):
    async with talk(f"{house.stack.gateway().websocket_url}/ws/chat/", house.key) as mine:
        request = chat("wishes", 260)
        followed = await mine.begin(request, level="economy", variant="blue")
        session = followed.opening["session"]
        assert followed.opening["level"] == "economy"
        await mine.say("wish", coalesce=600, heartbeat=2, quality=True)
        await mine.read_until(lambda: any(m["type"] == "quality" for m in mine.others), 20)
        told = next(m for m in mine.others if m["type"] == "quality")
        assert (told["coalesce_ms"], told["heartbeat_seconds"]) == (600, 2)
        while followed.end is None:
            seen = len(mine.log)
            await mine.read_until(lambda seen=seen: len(mine.log) > seen, 20)
            await mine.say("ack", session=session, seq=followed.cursor)
        assert followed.text == answer_to(request)
        acked = "SELECT acked_seq FROM session_fence WHERE session_id = %s"
        await until(lambda: house.stack.sql(acked, session) == [(followed.cursor,)], 20)
        await mine.say("wish", coalesce=None)
        for wrong in ({"coalesce": 1001}, {"coalesce": "x"}, {"heartbeat": 31}, {"quality": 1},
                      {"rtt_ms": "far"}, {"bytes_per_second": -1}):  # fmt: skip
            error = await mine.error_of(
                httpx.Request("POST", "http://x", json={"type": "wish", **wrong}).content
            )
            assert error["error"]["param"] == next(iter(wrong))
    level, variant, health = house.stored(session)
    assert (level, variant) == ("economy", "blue")
    assert health is not None


async def test_no_better_level_than_the_credential_has(house: House, client: Client):
    body = {"model": "sim-model", "messages": question("level", 5)}
    for path in ("/v1/sessions", "/v1/chat/completions"):
        for level, variant, status, param in (
            ("realtime", "blue", 403, "level"),
            ("fastest", "blue", 400, "level"),
            ("economy", "no such name", 400, "variant"),
        ):
            headers = {"x-unbroken-level": level, "x-unbroken-variant": variant}
            answer = await client.call("POST", path, body, headers=headers)
            assert (answer[0], answer[1]["error"]["param"]) == (status, param)
    for wish in ("1001", "-1", "soon"):
        answer = await client.call(
            "POST", "/v1/chat/completions", body, headers={"x-unbroken-coalesce": wish}
        )
        assert (answer[0], answer[1]["error"]["param"]) == (400, "coalesce")
    async with talk(f"{house.stack.gateway().websocket_url}/ws/chat/", house.key) as mine:
        await mine.say("start", request=chat("level", 5), level="realtime")
        await mine.read_until(lambda: bool(mine.others), 10)
        assert mine.others[0]["error"]["code"] == "not_permitted"
    reading = await client.create(question("lower", 5), headers={"x-unbroken-level": "economy"})
    await client.read(reading)
    reading.must_be_whole()
    assert house.stored(reading.session_id)[:2] == ("economy", "")


async def test_engines_are_told_who_goes_first(house: House):
    async def attempts_of(key: str, level: str) -> list[tuple[str, Any]]:
        async with Client([house.url], key) as client:
            reading = await client.create(
                question(level, 30),
                headers={"x-unbroken-level": level, "x-unbroken-rehearse": "kill@10,20"},
            )
            await client.read(reading)
            reading.must_be_whole()
        return house.priorities(reading.session_id)

    first, then = {"economy": 2, "standard": 0, "realtime": -2}, {}
    for level, priority in first.items():
        attempts = await attempts_of(house.realtime, level)
        then[level] = [told for node, told in attempts[1:] if node == "a"]
        assert {told for node, told in attempts if node == "b"} <= {None}
        assert [told for node, told in attempts[:1] if node == "a"] in ([], [priority])
        assert set(then[level]) <= {priority - 1}
        assert len({node for node, _ in attempts}) == 2, attempts


async def test_a_network_that_is_held_up(house: House, client: Client):
    """The reader misses nothing, is told that its network is weak, and its session remembers."""
    headers = {"x-unbroken-variant": "green"}
    reading = await client.create(question("held up", 900, "words"), headers=headers)
    weak = "SELECT health FROM streaming_streamsession WHERE id = %s AND health < 70"
    async with (
        SlowNetwork(house.stack.gateway().port) as network,
        Client([network.url], house.key) as far,
    ):
        task = asyncio.create_task(far.read(reading, query="?quality=1"))
        await until(lambda: reading.seq >= 20, 20)
        network.hold()
        await until(lambda: bool(house.stack.sql(weak, reading.session_id)), 30)
        network.release()
        await asyncio.wait_for(task, 40)
    reading.must_be_whole()
    assert reading.qualities[0]["score"] > reading.qualities[1]["score"]
    assert reading.qualities[1]["coalesce_ms"] > 0
    assert reading.qualities[1]["heartbeat_seconds"] < 8
    lowest = min(told["score"] for told in reading.qualities)
    assert house.stored(reading.session_id)[2] <= lowest
    seen = await scraped(
        house.url,
        lambda s: bool(s.value("unbroken_connection_health_count", level="standard")),
    )
    variants = {
        dict(labels)["variant"]
        for name, labels in seen.samples
        if name == "unbroken_quality_first_token_seconds_count"
    }
    assert "green" in variants
    assert variants <= {"none", "blue", "green", "other"}
