"""The process itself: connections, figures, schedule, cost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess

from .client import PATHS, ask, completion_body, posted, prompt_of, question


def test_a_disconnect_aborts_within_milliseconds(node: SimulatorProcess) -> None:
    node.set_fault(kind="slow", arg=0.02, times=-1)
    for streamed in (True, False):
        body = completion_body(node.dialect, prompt_of("[[tokens=900]]"), 1000, stream=streamed)
        with posted(node.port, PATHS[node.dialect], body):
            deadline = time.monotonic() + 2
            while not node.stats()["running"] and time.monotonic() < deadline:
                time.sleep(0.005)
        began = time.monotonic()
        while node.stats()["running"]:
            assert time.monotonic() - began < 0.5
        assert node.stats()["requests"][-1]["outcome"] == "disconnected"


def test_connections_are_kept_alive(node: SimulatorProcess) -> None:
    body = completion_body(node.dialect, prompt_of("[[tokens=5]]"), stream=node.dialect == "vllm")
    with httpx.Client(base_url=node.url) as client:
        for _ in range(3):
            assert client.post(PATHS[node.dialect], json=body).status_code == 200
            assert client.get("/health").status_code == 200
        pool = client._transport._pool  # type: ignore[attr-defined]
        assert len(pool.connections) == 1


def test_llamacpp_closes_after_a_stream(llamacpp: SimulatorProcess) -> None:
    body = completion_body("llamacpp", prompt_of("[[tokens=5]]"))
    with posted(llamacpp.port, PATHS["llamacpp"], body) as sock:
        received = b""
        while data := sock.recv(1 << 16):
            received += data
    assert received.endswith(b"0\r\n\r\n")
    assert b"Connection: close" not in received


def test_records_tell_what_was_asked(vllm: SimulatorProcess) -> None:
    text = "[[tokens=20]]"
    prompt = prompt_of(text) + expected_answer(question(text)).token_ids[:4]
    body = completion_body("vllm", prompt, 9, seed=5, stop=["zzz"])
    ask(vllm, body, X_Request_Id="s-1", X_Conversation_Id="c")
    record = vllm.stats()["requests"][-1]
    assert record["answer_tokens"] == 4
    assert (record["max_tokens"], record["seed"], record["stop"]) == (9, 5, ["zzz"])
    assert record["headers"] == {
        "host": "x", "x-request-id": "s-1", "x-conversation-id": "c",
    }  # fmt: skip
    assert (record["outcome"], record["produced"]) == ("length", 9)


def test_paced_streams_keep_their_schedule() -> None:
    with SimulatorProcess("vllm", pace=100, ttft_ms=50) as node:
        body = completion_body("vllm", prompt_of("[[tokens=50]]"))
        began = time.monotonic()
        with ThreadPoolExecutor(20) as pool:
            seen = list(pool.map(lambda _: ask(node, body), range(20)))
        took = time.monotonic() - began
        assert all(answer.finish == "stop" for answer in seen)
        # At its pace, and side by side: one after the other they would take 11 s.
        assert 0.55 <= took < 5


async def test_streams_progress_fairly(vllm: SimulatorProcess) -> None:
    """No stream ends before every other has begun, though one could be served whole at once."""
    body = json.dumps(completion_body("vllm", prompt_of("[[tokens=1500]]"), 2000)).encode()
    head = f"POST {PATHS['vllm']} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n"
    received = [0] * 10
    others_had: list[int] = []

    async def read(number: int, reader: asyncio.StreamReader) -> None:
        seen = b""
        while b"[DONE]" not in seen:
            data = await reader.read(65536)
            assert data, "the stream ended without its end"
            received[number] += len(data)
            seen = seen[-16:] + data
        others_had.extend([] if others_had else received)

    vllm.set_fault(kind="freeze_engine")  # until all of them are there
    pairs = [await asyncio.open_connection("127.0.0.1", vllm.port) for _ in received]
    for _, writer in pairs:
        writer.write(head.encode() + body)
    async with asyncio.timeout(10):
        while vllm.stats()["waiting"] < len(pairs):  # noqa: ASYNC110  it is another process
            await asyncio.sleep(0.02)
    vllm.clear_faults()
    await asyncio.gather(*(read(number, reader) for number, (reader, _) in enumerate(pairs)))
    for _, writer in pairs:
        writer.close()
    assert min(others_had) > 0


def test_dies_with_its_parent() -> None:
    script = (
        "import os, sys\n"
        "from tests.engine_simulator.process import SimulatorProcess\n"
        "print(SimulatorProcess('vllm').start().pid, flush=True)\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", script]
    pid = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("the simulator outlived its parent")


@pytest.mark.parametrize("dialect", ["vllm", "llamacpp"])
def test_measure_the_cost_of_a_token(dialect: str, record_property: pytest.RecordProperty) -> None:
    """Not a limit: prints processor time a token, unpaced and with 50 streams at once."""
    with SimulatorProcess(dialect) as node:
        body = completion_body(dialect, prompt_of("[[tokens=2000]]"), 2000, ignore_eos=True)
        before = _processor_seconds(node.pid)
        with ThreadPoolExecutor(50) as pool:
            list(pool.map(lambda _: ask(node, body, patience=30).ended, range(50)))
        spent = _processor_seconds(node.pid) - before
        cost = spent / node.stats()["generated_tokens"] * 1e6
    record_property("microseconds_per_token", cost)
    print(f"{dialect}: {cost:.1f} µs a token")


def _processor_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
