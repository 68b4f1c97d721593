"""The log of a real stack while an engine dies: the whole story of a session, found by its id."""

from __future__ import annotations

import asyncio
import sys

from tests.billing.worker import Worker
from tests.durability.reader import Readers, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.logs.lines import Entry, entries
from tests.stack import ROOT, Stack
from tests.websocket.talk import chat, talk

SECRET = "Rumpelstilzchen"
TOKENS = 200
JSON = {"LOG_FORMAT": "json", "LOG_LEVEL": "DEBUG", "HEALTH_INTERVAL": "0.2"}


def of(story: list[Entry], message: str) -> list[Entry]:
    return [entry for entry in story if entry["message"] == message]


async def test_a_session_is_found_from_its_reader_to_its_engines(start_stack) -> None:
    with SimulatorProcess("vllm", pace=60) as a, SimulatorProcess("vllm", pace=60) as b:
        nodes = [f"a=vllm+{a.url}", f"b=vllm+{b.url}"]
        stack: Stack = start_stack(engine_nodes=nodes, env=JSON)
        gateway, key = stack.gateway(), stack.api_key()
        async with (
            Readers(gateway.url, key) as readers,
            talk(gateway.websocket_url + "/ws/chat/", key) as socket,
        ):
            messages = question(SECRET, TOKENS)
            streamed = asyncio.create_task(readers.ask(messages, headers={"x-request-id": "mine"}))
            whole = asyncio.create_task(
                readers.client.post(
                    "/v1/chat/completions",
                    json={"model": "sim-model", "messages": question(SECRET + " 2", TOKENS)},
                )
            )
            await socket.say("start", request=chat(SECRET, TOKENS))
            busy = "SELECT count(*) FROM streaming_streamsession WHERE state = 'streaming'"
            await until(lambda: stack.sql(busy) == [(3,)])
            running = (
                "SELECT count(*) FROM streaming_attempt WHERE ended_at IS NULL AND node_name = 'a'"
            )
            [(failing,)] = stack.sql(running)
            a.kill()
            await socket.read_until(lambda: any(f.end for f in socket.sessions.values()))
            seen, answer = await streamed, await whole
            assert seen.is_whole, seen.trouble
            assert answer.status == 200
        followed = next(iter(socket.sessions))
        ids = [seen.session_id, answer.headers["x-session-id"], followed]
        with Worker(stack) as worker:
            worker.settle()
            await until(lambda: "settle_sessions" in worker.log)
            entries(worker.log)
        log = gateway.log
        told = entries(log)
        assert failing
        over = 0
        for session_id in ids:
            story = [entry for entry in told if entry.get("session_id") == session_id]
            (end,) = of(story, "session ended")
            assert (end["state"], end["tokens"]) == ("completed", TOKENS + 1)
            attempts = of(story, "attempt ended")
            numbers = {entry["attempt"] for entry in attempts}
            assert numbers == set(range(1, end["attempts"] + 1))
            (finished,) = [entry for entry in attempts if entry["reason"] == "finished"]
            assert finished["node"] == "b"
            (reader,) = of(story, "answer told")
            assert reader["outcome"] == "whole"
            assert {entry["tenant_id"] for entry in (end, reader, *attempts)} == {end["tenant_id"]}
            assert {entry["request_id"] for entry in (end, reader, *attempts)} == {
                reader["request_id"]
            }
            over += end["failovers"]
        assert 1 <= over <= failing
        (mine,) = [e for e in of(told, "answer told") if e["session_id"] == seen.session_id]
        assert (mine["request_id"], mine["status"], mine["protocol"]) == ("mine", 200, "openai")
        assert mine["bytes"] > len(seen.text.encode())
        # What goes on for all of them is no part of the story of the one that began it.
        shared = [entry for entry in told if entry["logger"] == "streaming.runtime.reclaim"]
        assert shared
        assert not [entry for entry in shared if "session_id" in entry]
        assert SECRET not in log
        assert key not in log
        for token_text in (seen.text[:24], seen.text[-24:]):
            assert token_text not in log
            assert token_text.encode("ascii", "backslashreplace").decode() not in log


async def test_what_a_process_says_outside_of_records_is_a_record_too(start_stack) -> None:
    """Warnings of Python, and an exception that ends it."""
    stack: Stack = start_stack(gateways=0, env={**JSON, "PYTHONWARNINGS": "always"})
    code = (
        "import django, warnings; django.setup(); warnings.warn('odd'); raise RuntimeError('over')"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=ROOT, env=stack.env(), stderr=asyncio.subprocess.PIPE
    )
    _, stderr = await process.communicate()
    warning, last = entries(stderr.decode())[-2:]
    assert (warning["logger"], warning["level"]) == ("py.warnings", "WARNING")
    assert (last["logger"], last["level"]) == ("uncaught", "CRITICAL")
    assert "RuntimeError: over" in last["exception"]
    assert process.returncode == 1
