"""Two real vLLM servers; the one that serves is killed, frozen or told to end while the reader reads.

In float32 its prefill and its decode agree, so a greedy answer that went on elsewhere is the one of
an undisturbed run, token for token.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.failover.client import Reply
from tests.failover.log import StoredLog, stored_session
from tests.real_vllm.conftest import Fleet, nodes_of, wait_until
from tests.real_vllm.server import VLLMServer

MAX_TOKENS = 48
PROMPTS = {
    "English": "Explain in a few sentences why the sky is blue.",
    "French": "Décris une forêt en été, en français.",
    "emoji": "Repeat exactly: 🌙🌟🦊 🚀 moon 🌙🌟🦊 🚀 star 🌙🌟🦊 🚀",
}
# Tokens that the reader has when it happens.
CUTS = [("English", 5), ("French", 20), ("emoji", 12)]


def unbroken(fleet: Fleet, prompt: str) -> tuple[list[int], str]:
    """What the engine itself, asked without us, answers: ids and text."""
    server = next(server for server in fleet.servers.values() if server.is_alive)
    messages = [{"role": "user", "content": prompt}]
    body = {"messages": messages, "add_generation_prompt": True}
    rendered = httpx.post(f"{server.url}/tokenize", json=body, timeout=10).json()["tokens"]
    return server.completed(rendered, MAX_TOKENS)


def disturbed(
    fleet: Fleet, prompt: str, token: int, disturb: Callable[[VLLMServer], None]
) -> tuple[Reply, VLLMServer]:
    """Ask, and ``disturb`` the server that serves once the reader has ``token`` tokens."""
    hit: list[VLLMServer] = []

    def watch(reply: Reply) -> None:
        if not hit and reply.seqs and reply.seqs[-1] >= token:
            hit.append(fleet.serving(reply))
            disturb(hit[0])

    reply = fleet.ask(prompt, on_text=watch, max_tokens=MAX_TOKENS)
    assert hit, "it was over before it could be disturbed"
    return reply, hit[0]


def check(
    fleet: Fleet, reply: Reply, expected: tuple[list[int], str], hit: VLLMServer
) -> StoredLog:
    """It is the undisturbed answer, once and to its end, and the last part is from elsewhere."""
    ids, text = expected
    log = fleet.log(reply)
    assert reply.status == 200
    assert reply.error is None
    assert reply.is_done
    assert reply.text == text
    assert reply.finish_reason == ("length" if len(ids) == MAX_TOKENS else "stop")
    assert reply.seqs == sorted(set(reply.seqs))
    assert reply.counted[1] == len(ids)
    assert log.ids == ids
    assert log.text == text
    assert log.is_closed
    assert stored_session(fleet.stack.sql, reply.session_id)["state"] == "completed"
    attempts = fleet.attempts(reply)
    last = attempts[max(log.attempts_of_tokens) - 1]
    assert last.end_reason == "finished"
    assert last.grade == "exact"
    assert last.node != hit.name
    return log


def show(capsys: pytest.CaptureFixture[str], title: str, fleet: Fleet, reply: Reply) -> None:
    """Figures depend on the machine; they are shown, not judged."""
    events = fleet.events(reply)
    ends = ", ".join(attempt.end_reason for attempt in fleet.attempts(reply))
    with capsys.disabled():
        print(f"\n{title}: {' '.join(events)} ({ends}); gap {events['recovered']['gap_ms']} ms")


def stop_core(server: VLLMServer) -> None:
    server.core.suspend()


def kill_core(server: VLLMServer) -> None:
    server.core.kill()


def kill_api(server: VLLMServer) -> None:
    server.api.kill()


def terminate_api(server: VLLMServer) -> None:
    """As an orchestrator does it: to the process that it started, not to its children."""
    os.kill(server.api.pid, signal.SIGTERM)


@pytest.fixture
def awake(servers: dict[str, VLLMServer]) -> Iterator[None]:
    """Whatever was stopped goes on after the test."""
    yield
    for server in servers.values():
        if server.is_alive:
            server.core.resume()


@pytest.mark.parametrize(("name", "token"), CUTS)
@pytest.mark.usefixtures("awake")
def test_a_stopped_core_is_left(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], name: str, token: int
) -> None:
    """SIGSTOP: its connections stay open, and the API process says that all is well."""
    healthy: list[int] = []

    def stop(server: VLLMServer) -> None:
        stop_core(server)
        healthy.append(server.get("/health").status_code)

    expected = unbroken(fleet, PROMPTS[name])
    reply, hit = disturbed(fleet, PROMPTS[name], token, stop)
    check(fleet, reply, expected, hit)
    assert healthy == [200]
    assert fleet.cause(reply) == "engine_frozen"
    show(capsys, f"{name}, stopped at {token}", fleet, reply)
    # What was left behind does not go on when it wakes.
    hit.core.resume()
    wait_until(lambda: hit.running() == 0, "the answer that was left is still being generated")
    fleet.wait_for(hit.name, "up")


@pytest.mark.parametrize(
    ("how", "name", "token"),
    [
        (kill_core, "emoji", 12),
        (terminate_api, "French", 9),
        (kill_api, "English", 20),
    ],
    ids=["SIGKILL of EngineCore", "SIGTERM", "SIGKILL of the API process"],
)
def test_a_server_ends(
    fleet: Fleet,
    capsys: pytest.CaptureFixture[str],
    how: Callable[[VLLMServer], None],
    name: str,
    token: int,
) -> None:
    expected = unbroken(fleet, PROMPTS[name])
    reply, hit = disturbed(fleet, PROMPTS[name], token, how)
    log = check(fleet, reply, expected, hit)
    seam = sum(number == 1 for number in log.attempts_of_tokens)
    assert token <= seam < MAX_TOKENS
    assert fleet.cause(reply) == "engine_crash"
    show(capsys, f"{name}, {how.__name__} at {token}", fleet, reply)
    fleet.wait_for(hit.name, "down")
    # Nobody serves there any more, but everybody is served.
    again = fleet.ask(PROMPTS["English"], max_tokens=5)
    assert again.is_done
    assert nodes_of(again) != [hit.name]
    hit.kill()
