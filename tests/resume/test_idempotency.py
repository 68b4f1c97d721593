"""``Idempotency-Key``: the same request is the same session, asked of engines and billed once."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import orjson
import pytest

from tests.durability.reader import until
from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess
from tests.resume.events import COME_BACK, Client, question, urls
from tests.stack import Stack


@pytest.fixture(scope="module")
def pair():
    """Two gateways over one engine, for all tests of this module."""
    with ExitStack() as resources:
        engine = resources.enter_context(SimulatorProcess("vllm", pace=100))
        yield resources.enter_context(Stack(gateways=2, engine_nodes=[f"a=vllm+{engine.url}"]))


@pytest.fixture
async def client(pair):
    async with Client(urls(pair), pair.api_key()) as client:
        yield client


async def ask(
    client: Client,
    key: str,
    text: str = "once",
    *,
    gateway: int = 0,
    headers: dict[str, str] | None = None,
    **parameters: Any,
) -> tuple[int, Any]:
    """One request that is not streamed."""
    body = {"model": "sim-model", "messages": question(text, 20), "temperature": 0, **parameters}
    sent = {"idempotency-key": key, **(headers or {})}
    return await client.call("POST", "/v1/chat/completions", body, gateway=gateway, headers=sent)


def sessions(stack: Stack, text: str) -> int:
    """How many sessions were begun for a question; each was asked of an engine at most once."""
    rows = stack.sql(
        "SELECT (SELECT count(*) FROM streaming_attempt a WHERE a.session_id = s.id)"
        " FROM streaming_streamsession s WHERE encode(request, 'escape') LIKE %s",
        f"%{text}%",
    )
    assert all(count <= 1 for (count,) in rows)
    return len(rows)


async def test_the_same_key_and_body_is_the_same_session(pair, client):
    key = uuid4().hex
    _, first = await ask(client, key, "replayed")
    for gateway in (0, 1):
        assert await ask(client, key, "replayed", gateway=gateway) == (200, first)
    assert (
        first["choices"][0]["message"]["content"] == expected_answer(question("replayed", 20)).text
    )
    assert sessions(pair, "replayed") == 1
    outbox = pair.sql(
        "SELECT count(*) FROM streaming_outboxmessage o JOIN streaming_idempotencykey k"
        " USING (session_id) WHERE k.key = %s AND o.kind = 'session_ended'",
        key,
    )
    assert outbox == [(1,)], "its end is announced to billing once"


async def test_a_sessions_request_is_replayed_too(pair, client):
    headers = {"idempotency-key": uuid4().hex}
    one = await client.create(question("by events", 30), headers=headers)
    other = await client.create(question("by events", 30), headers=headers, gateway=1)
    assert one.session_id == other.session_id
    await asyncio.gather(client.read(one), client.read(other, gateway=1))
    one.must_be_whole()
    other.must_be_whole()


@pytest.mark.parametrize("change", [{"max_tokens": 5}, {"stream": True}, {"text": "other"}])
async def test_another_body_is_refused(client, change):
    key = uuid4().hex
    assert (await ask(client, key))[0] == 200
    status, answer = await ask(client, key, **change)
    assert (status, answer["error"]["code"]) == (409, "idempotency_mismatch")


async def test_keys_belong_to_tenant_and_end_user(pair, client):
    key = uuid4().hex
    answers = [await ask(client, key, "whose")]
    answers += [await ask(client, key, "whose", headers={"x-unbroken-user": u}) for u in ("a", "b")]
    async with Client(urls(pair), pair.api_key("rivals")) as stranger:
        answers.append(await ask(stranger, key, "whose"))
    assert [status for status, _ in answers] == [200] * 4
    assert len({answer["id"] for _, answer in answers}) == 4
    assert sessions(pair, "whose") == 4


async def test_identical_requests_race_on_two_processes(pair, client):
    keys = [uuid4().hex for _ in range(6)]
    answers = await asyncio.gather(
        *(
            ask(client, key, f"race {number}", gateway=turn % 2)
            for number, key in enumerate(keys)
            for turn in range(4)
        )
    )
    assert {status for status, _ in answers} == {200}
    assert len({answer["id"] for _, answer in answers}) == len(keys)
    assert [sessions(pair, f"race {number}") for number in range(len(keys))] == [1] * len(keys)


async def test_a_refused_request_releases_its_key(pair, client):
    key = uuid4().hex
    status, _ = await ask(client, key, model="no such model")
    assert status == 404
    assert pair.sql("SELECT 1 FROM streaming_idempotencykey WHERE key = %s", key) == []
    assert (await ask(client, key, "again"))[0] == 200


async def test_a_claim_whose_process_died_is_free_again(pair, client):
    key = uuid4().hex
    body = {"model": "sim-model", "messages": question("died", 20), "temperature": 0}
    pair.sql(
        "INSERT INTO streaming_idempotencykey (tenant_id, end_user, key, body_digest, session_id, created_at)"
        " SELECT id, '', %s, %s, %s, now() - interval '9 s' FROM streaming_tenant WHERE name = 'acme'",
        key,
        hashlib.sha256(orjson.dumps(body)).digest(),
        uuid4(),
    )
    sent = {"idempotency-key": key, "content-type": "application/json"}

    async def once(gateway: int) -> tuple[int, str]:
        url = f"{client.urls[gateway]}/v1/chat/completions"
        async with client.http.post(url, data=orjson.dumps(body), headers=sent) as response:
            return response.status, orjson.loads(await response.read())["id"]

    answers = await asyncio.gather(*(once(turn % 2) for turn in range(4)))
    assert {status for status, _ in answers} == {200}
    assert len({completion for _, completion in answers}) == 1
    assert sessions(pair, "died") == 1


async def test_a_key_outlives_the_process_that_served_it(start_stack):
    """The owner is killed in the middle; the client asks again elsewhere and gets the same answer."""
    with SimulatorProcess("vllm", pace=20) as engine:
        stack = start_stack(gateways=2, engine_nodes=[f"a=vllm+{engine.url}"])
        async with Client(urls(stack), stack.api_key()) as client:
            key = uuid4().hex
            task = asyncio.create_task(ask(client, key, "outlives"))
            await until(lambda: durable(stack) >= 3)
            stack.gateway(0).kill()
            with pytest.raises(COME_BACK):
                await task
            status, answer = await ask(client, key, "outlives", gateway=1)
            assert status == 200
            content = answer["choices"][0]["message"]["content"]
            assert content == expected_answer(question("outlives", 20)).text
            assert stack.sql("SELECT count(*) FROM streaming_streamsession") == [(1,)]


def durable(stack: Stack) -> int:
    return stack.sql("SELECT coalesce(max(durable_seq), 0) FROM session_fence")[0][0]


@pytest.mark.parametrize("key", ["", "k" * 256, "a\tb"])
async def test_keys_that_are_none(client, key):
    status, answer = await ask(client, key)
    assert (status, answer["error"]["code"]) == (400, "invalid_request")
