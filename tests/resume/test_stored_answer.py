"""``GET /v1/sessions/{id}``: the stored answer, for its principal and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.durability.reader import question, until
from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

WAIT = 60.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with (
        SimulatorProcess("vllm", pace=400) as engine,
        Stack(engine_nodes=[f"a=vllm+{engine.url}"], env={"GRACE_SECONDS": "0.5"}) as stack,
    ):
        yield stack


def client(stack: Stack, key: str, user: str = "") -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}", "x-unbroken-user": user}
    return httpx.AsyncClient(base_url=stack.gateway().url, headers=headers, timeout=WAIT)


async def begun(http: httpx.AsyncClient, messages: list[dict[str, str]]) -> str:
    body = {"model": "sim-model", "messages": messages, "temperature": 0}
    return (await http.post("/v1/sessions", json=body)).json()["id"]


async def ended(http: httpx.AsyncClient, session_id: str) -> dict[str, Any]:
    """The session, once it has ended; without its answer, which is asked for afterwards."""
    session: dict[str, Any] = {"ended_at": None}
    async with asyncio.timeout(WAIT):
        while session["ended_at"] is None:
            session = (await http.get(f"/v1/sessions/{session_id}?answer=0")).json()
            await asyncio.sleep(0.05)
    assert "answer" not in session
    return session


async def test_a_session_that_nobody_followed_gives_its_answer_and_counts_it_as_delivered(stack):
    key = stack.api_key(on_disconnect="finish")
    messages = question('stored \u2028 "quotes" \\', 300)
    async with client(stack, key, "ann") as http:
        session_id = await begun(http, messages)
        early = (await http.get(f"/v1/sessions/{session_id}")).json()
        if early["ended_at"] is None:
            assert (early["answer"], early["usage"]) == (None, None)
        session = await ended(http, session_id)
        assert (session["state"], session["delivered_seq"]) == ("completed", 0)
        session = (await http.get(f"/v1/sessions/{session_id}")).json()
        wanted = expected_answer(messages)
        tokens = session["answer"]["tokens"]
        assert session["answer"] == {
            "text": wanted.text, "tokens": tokens, "finish_reason": wanted.finish_reason,
        }  # fmt: skip
        assert tokens == session["durable_seq"] - 1 == session["usage"]["completion_tokens"]
        assert session["usage"]["prompt_tokens"] > 0
        head = await http.head(f"/v1/sessions/{session_id}")
        assert (head.status_code, head.content) == (200, b"")

        def is_delivered() -> bool:
            return stack.sql(
                "SELECT delivered_seq = durable_seq, acked_seq FROM session_fence WHERE session_id = %s",
                session_id,
            ) == [(True, 0)]

        await until(is_delivered, WAIT)
        assert stack.sql(
            "SELECT count(*) FROM streaming_outboxmessage"
            " WHERE session_id = %s AND kind = 'session_delivered'",
            session_id,
        ) != [(0,)]  # billing hears of it
        for other in (client(stack, key, "bob"), client(stack, stack.api_key("globex"), "ann")):
            async with other:
                refused = await other.get(f"/v1/sessions/{session_id}")
                assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")


async def test_a_long_answer_is_whole(stack):
    key = stack.api_key(on_disconnect="finish")
    async with client(stack, key) as http:
        session_id = await begun(http, question("long", 20))
        await ended(http, session_id)
        # As if a flush had brought each of a thousand more pieces of a kilobyte.
        stack.sql(
            "WITH last AS (DELETE FROM streaming_tokencheckpoint WHERE session_id = %s AND"
            " terminal IS NOT NULL RETURNING *)"
            " INSERT INTO streaming_tokencheckpoint (session_id, epoch, attempt, first_seq, last_seq,"
            " token_ids, text, text_ends, digest, terminal, ends_surely, created_at, expires_on)"
            " SELECT session_id, epoch, attempt, last_seq + n, last_seq + n,"
            " CASE WHEN n = 1000 THEN '' ELSE '\\x01000000'::bytea END,"
            " CASE WHEN n = 1000 THEN '' ELSE convert_to(repeat(E'\"\\n\\\\a', 256), 'UTF8') END,"
            " CASE WHEN n = 1000 THEN '' ELSE '\\x00040000'::bytea END,"
            " digest, CASE WHEN n = 1000 THEN terminal END, ends_surely, created_at, expires_on"
            " FROM last, generate_series(0, 1000) n",
            session_id,
        )
        stack.sql(
            "UPDATE session_fence SET durable_seq = durable_seq + 1000 WHERE session_id = %s",
            session_id,
        )
        answer = (await http.get(f"/v1/sessions/{session_id}")).json()["answer"]
        assert answer["text"].endswith('"\n\\a' * 256 * 1000)
        assert len(answer["text"]) > 1_000_000


async def test_a_purged_answer_is_gone_and_says_since_when(stack):
    key = stack.api_key(on_disconnect="finish")
    async with client(stack, key) as http:
        session_id = await begun(http, question("purged", 10))
        await ended(http, session_id)
        stack.sql("DELETE FROM streaming_tokencheckpoint WHERE session_id = %s", session_id)
        lost = await http.get(f"/v1/sessions/{session_id}")
        assert (lost.status_code, lost.json()["error"]["code"]) == (410, "session_purged")
        stack.sql("UPDATE streaming_streamsession SET purged_at = now() WHERE id = %s", session_id)
        session = (await http.get(f"/v1/sessions/{session_id}")).json()
        assert session["answer"] is None
        assert session["purged_at"] is not None
        assert session["usage"]["completion_tokens"] > 0
