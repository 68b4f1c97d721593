"""The bytes of a stream: head, ids, comments; and what a client's leaving does."""

from __future__ import annotations

import asyncio
import json
import re
import time
from itertools import pairwise

import httpx
import pytest

from tests.durability.reader import Readers, Seen, question, until
from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess
from tests.openai_front.conftest import MODEL, Front

SLOW = question("Slowly", 4000)


def body(messages: list[dict[str, str]], **parameters: object) -> dict[str, object]:
    return {"model": MODEL, "messages": messages, "temperature": 0, **parameters}


def test_headers(front: Front) -> None:
    headers = {**front.headers, "x-request-id": "my-request.1", "accept-encoding": "gzip, br"}
    response = httpx.post(
        front.url + "/v1/chat/completions",
        headers=headers,
        json=body(question("Head", 5), stream=True),
    )
    got = response.headers
    assert got["content-type"] == "text/event-stream; charset=utf-8"
    assert got["cache-control"] == "no-cache, no-transform"
    assert got["x-accel-buffering"] == "no"
    assert got["x-request-id"] == "my-request.1"
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", got["x-session-id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", got["x-server-time"])
    assert "content-encoding" not in got
    row = "SELECT request_id FROM streaming_streamsession WHERE id = %s"
    assert front.stack.sql(row, got["x-session-id"]) == [("my-request.1",)]


def test_ids_and_order(front: Front) -> None:
    messages = question("Ids", 20)
    response = front.post(json=body(messages, stream=True, stream_options={"include_usage": True}))
    events = response.text.split("\n\n")
    assert events.pop() == ""
    answer = expected_answer(messages)
    assert events[-1] == f"id: {answer.completion_tokens + 1}\ndata: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["choices"] == []
    assert (
        json.loads(events[0].removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
    )
    content = [event for event in events if event.startswith("id: ")][:-1]
    ids = [int(event.split("\n")[0].removeprefix("id: ")) for event in content]
    assert ids == sorted(set(ids))
    # The token that ends the answer has no text, so maybe no event.
    assert ids[-1] in (answer.completion_tokens - 1, answer.completion_tokens)


def test_the_200_does_not_wait_for_a_late_first_token(front: Front) -> None:
    with SimulatorProcess("vllm", model="late", ttft_ms=1500) as late:
        gateway = front.stack.start_gateway(
            ENGINE_NODES=f"a=vllm+{front.engine.url},late=vllm+{late.url}"
        )
        began = time.monotonic()
        with httpx.stream(
            "POST", gateway.url + "/v1/chat/completions", headers=front.headers, timeout=10,
            json=body(question("Late", 5), stream=True) | {"model": "late"},
        ) as response:  # fmt: skip
            head = time.monotonic() - began
            data = b"".join(response.iter_raw())
        gateway.terminate()
        gateway.wait()
    assert response.status_code == 200
    assert 0.3 < head < 1.2, f"the head came after {head:.2f} s"
    events = data.split(b"\n\n")
    assert b'"role":"assistant"' in events[0]
    assert events[1] == b":keepalive"
    assert data.count(b"\n\n:keepalive\n\n") >= 2
    assert b"\n\ndata: [DONE]" not in data
    assert data.endswith(b"\ndata: [DONE]\n\n")


async def test_pings_at_once_and_every_second_while_recovering(front: Front) -> None:
    """The only node breaks and refuses for a while: `: ping` at once, then each second."""
    front.engine.set_fault(kind="sigkill", at_token=8)
    seen = Seen(question("Ping", 30, "plain"))
    async with Readers(front.url, front.key) as readers:
        asking = asyncio.create_task(readers.ask(seen.messages, seen=seen))
        await asyncio.to_thread(front.engine.wait_dead, 10)
        died = time.monotonic()
        await asyncio.sleep(2.4)
        pings = [at - died for at, comment in seen.comments if comment == b": ping"]
        front.engine.restart()  # not in a thread: it would die with that
        await asyncio.wait_for(asking, 10)
    assert seen.is_whole, seen.trouble
    assert pings[0] < 0.3
    assert len(pings) >= 3
    assert all(0.8 < b - a < 1.4 for a, b in pairwise(pings)), pings
    await until(lambda: "up" in str(front.stack.sql("SELECT health FROM streaming_inferencenode")))


@pytest.fixture
def paced_front(front: Front):
    """Another gateway on an engine that takes its time."""
    with SimulatorProcess("vllm", model="paced", pace=50) as engine:
        nodes = f"a=vllm+{front.engine.url},paced=vllm+{engine.url}"
        gateway = front.stack.start_gateway(ENGINE_NODES=nodes)
        yield gateway.url, engine
        gateway.terminate()
        gateway.wait()


async def test_a_reader_that_leaves_ends_its_session(front: Front, paced_front) -> None:
    """With a key whose policy is ``cancel``: the engine is released at once."""
    url, engine = paced_front
    async with Readers(url, front.stack.api_key(on_disconnect="cancel")) as readers:
        seen = await asyncio.gather(
            *(readers.ask(SLOW, leave_after=2, model="paced") for _ in range(5))
        )
    left = time.monotonic()
    await until(lambda: engine.stats()["running"] == 0)
    assert time.monotonic() - left < 1.0
    for reader in seen:
        await until(lambda: front.state_of(reader.session_id)[0] != "streaming")  # noqa: B023
        assert front.state_of(reader.session_id) == ("cancelled", "client_gone")


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_before_its_answer(
    front: Front, paced_front, streamed: bool
) -> None:
    """Nobody can come back for an answer that is not streamed; for a stream the key decides."""
    url, engine = paced_front
    key = front.stack.api_key(on_disconnect="cancel" if streamed else "suspend")
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}) as client:
        asking = asyncio.create_task(
            client.post(
                url + "/v1/chat/completions", timeout=30,
                json=body(SLOW, stream=streamed, user=f"leaver {streamed}") | {"model": "paced"},
            )
        )  # fmt: skip
        await until(lambda: engine.stats()["running"] == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    left = time.monotonic()
    await until(lambda: engine.stats()["running"] == 0)
    assert time.monotonic() - left < 1.0
    query = "SELECT state, cause FROM streaming_streamsession WHERE end_user = %s"
    await until(
        lambda: front.stack.sql(query, f"leaver {streamed}") == [("cancelled", "client_gone")]
    )
