"""What a client says that it has, when a gateway died that may have sent it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.durability.reader import until
from tests.engine_simulator.process import SimulatorProcess
from tests.resume.events import Client, Reading, question, states, urls
from tests.stack import Stack


@pytest.fixture
def stack() -> Iterator[Stack]:
    with (
        SimulatorProcess(pace=60) as engine,
        Stack(
            gateways=2,
            engine_nodes=[f"a=vllm+{engine.url}"],
            env={"GRACE_SECONDS": "0.3"},
        ) as stack,
    ):
        yield stack


async def delivered(client: Client, reading: Reading, seq: int) -> int:
    status, body = await client.call("POST", f"/v1/sessions/{reading.session_id}/ack", {"seq": seq})
    assert status == 200
    return body["delivered_seq"]


async def test_one_that_died_long_after_the_session_was_suspended_had_sent_nothing_of_it(
    stack: Stack,
) -> None:
    """Else one crash would have every older answer billed to whoever claims to have got it."""
    async with Client(urls(stack)[:1], stack.api_key()) as client:
        reading = await client.create(question("never read", 400))
        await until(lambda: states(stack, [reading]) == {"suspended": 1})
        ((durable,),) = stack.sql("SELECT durable_seq FROM session_fence")
        assert durable > 0
        assert await delivered(client, reading, durable) == 0
        await until(
            lambda: (
                stack.sql(
                    "SELECT min(i.heartbeat_at) > s.suspended_at + interval '3 seconds'"
                    " FROM streaming_gatewayinstance i, streaming_streamsession s GROUP BY s.suspended_at"
                )
                == [(True,)]
            ),
            15,
        )
        stack.gateway(1).kill()
        assert await delivered(client, reading, durable) == 0


async def test_one_that_died_while_the_session_was_live_may_have_sent_it(stack: Stack) -> None:
    async with Client(urls(stack)[:1], stack.api_key()) as client:
        reading = await client.create(question("read elsewhere", 400))
        await until(
            lambda: stack.sql("SELECT count(*) FROM session_fence WHERE durable_seq > 5") == [(1,)]
        )
        stack.gateway(1).kill()
        await until(lambda: states(stack, [reading]) == {"suspended": 1})
        assert await delivered(client, reading, 5) == 5
