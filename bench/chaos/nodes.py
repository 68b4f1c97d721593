"""Engines that can be hurt: simulated ones, and real llama.cpp servers with the demo model."""

from __future__ import annotations

import signal
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

import httpx

from bench.chaos.gauges import Reading, look
from bench.chaos.job import Question
from bench.chaos.records import FaultKind
from gateway_project.embedded import llama
from gateway_project.embedded.process import free_port, spawn, wait_until_ready
from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess

SLOWER = 4
"""A slow node takes this many times its pace."""
PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Tell a short story about a lighthouse.",
    "What is a prime number? Give three examples.",
    "Describe how bread is made.",
    "Write a letter to a friend about the sea.",
    "Why do leaves fall in autumn?",
    "Explain what a volcano is to a child.",
    "List five things to see in a museum, with a sentence each.",
)


class Node(ABC):
    """One engine in a process of its own. Used by one thread at a time."""

    able: frozenset[FaultKind]

    def __init__(self, name: str, options: str) -> None:
        """``options``: of its node, as a query string; none: empty."""
        self.name = name
        self._options = options
        self.readings: list[Reading] = []
        """Its figures just before each of its ends: what is read once a second comes short of them."""
        self.wrong_prefixes = 0

    url: str

    @property
    @abstractmethod
    def spec(self) -> str:
        """For ``ENGINE_NODES``."""

    @abstractmethod
    def strike(self, kind: FaultKind) -> None:
        """Do it."""

    @abstractmethod
    def undo(self, kind: FaultKind) -> None:
        """Return when it works again."""

    @abstractmethod
    def close(self) -> None:
        """End the process."""

    @abstractmethod
    def questions(self, count: int, tokens: int, gateway: str, key: str) -> list[Question]:
        """With the answers that this engine gives when nothing breaks."""

    def read(self) -> None:
        """Keep what this process has counted: its figures end with it.

        One that does not answer is struck nevertheless; then the last reading of others counts.
        """
        with suppress(OSError, ValueError):
            self.readings.append(look(self.name, self.url))


class SimulatedNode(Node):
    """Knows every answer, and notices a continuation of another one."""

    able = frozenset({"node_kill", "node_stop", "node_freeze", "node_reset", "node_slow"})

    def __init__(self, name: str, pace: float, options: str = "") -> None:
        super().__init__(name, options)
        self._pace = pace
        self._process = SimulatorProcess(pace=pace).start()
        self.url = self._process.url

    @property
    def spec(self) -> str:
        return f"{self.name}=vllm+{self.url}?{self._options}"

    def strike(self, kind: FaultKind) -> None:
        process = self._process
        if kind == "node_kill":
            self.read()
            process.kill()
        elif kind == "node_stop":
            process.stop()
        elif kind == "node_freeze":
            process.set_fault(kind="freeze_engine")
        elif kind == "node_reset":
            process.set_fault(kind="reset_connections")
        elif kind == "node_slow":
            process.set_fault(kind="slow_engine", arg=(SLOWER - 1) / (self._pace or 100.0))

    def undo(self, kind: FaultKind) -> None:
        if kind == "node_kill":
            self._process.restart()
        elif kind == "node_stop":
            self._process.cont()
        elif kind in ("node_freeze", "node_slow"):
            self._process.clear_faults()

    def read(self) -> None:
        super().read()
        with suppress(httpx.HTTPError):
            self.wrong_prefixes += self._process.stats()["wrong_prefixes"]

    def close(self) -> None:
        self._process.close()

    def questions(self, count: int, tokens: int, gateway: str, key: str) -> list[Question]:
        """Of half to one and a half of ``tokens``."""
        questions = []
        for number in range(count):
            length = max(1, round(tokens * (0.5 + number / max(1, count - 1))))
            words = f"Question {number} [[tokens={length}]][[alphabet=mixed]]"
            messages = [{"role": "user", "content": words}]
            answer = expected_answer(messages, max_tokens=2 * length)
            questions.append(
                Question(
                    messages=messages, max_tokens=2 * length, text=answer.text,
                    tokens=answer.completion_tokens,
                )
            )  # fmt: skip
        return questions


class LlamaNode(Node):
    """llama.cpp's own server with the demo model. A slow one is stopped most of the time."""

    able = frozenset({"node_kill", "node_stop"})

    def __init__(self, name: str, options: str = "") -> None:
        super().__init__(name, options)
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._start()

    @property
    def spec(self) -> str:
        # Its prompt cache changes the last bits of the logits, and so the answer, without any fault.
        return f"{self.name}=llamacpp+{self.url}?prompt_cache=off&{self._options}"

    def _start(self) -> None:
        self._process = spawn(
            llama.command(port=self._port, name=self.name),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, death_signal=signal.SIGKILL,
        )  # fmt: skip
        wait_until_ready(
            self._process, self._is_healthy, name=self.name, seconds=llama.START_SECONDS,
            pause=time.sleep,
        )  # fmt: skip

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    def strike(self, kind: FaultKind) -> None:
        if kind == "node_kill":
            self.read()
            self._process.kill()
            self._process.wait()
        elif kind == "node_stop":
            self._process.send_signal(signal.SIGSTOP)

    def undo(self, kind: FaultKind) -> None:
        if kind == "node_kill":
            self._start()
        elif kind == "node_stop":
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def questions(self, count: int, tokens: int, gateway: str, key: str) -> list[Question]:
        """The answers of the undisturbed engine, asked through the gateway one after the other."""
        return [asked(gateway, key, llama.MODEL, prompt, tokens) for prompt in PROMPTS[:count]]


def asked(gateway: str, key: str, model: str, prompt: str, tokens: int) -> Question:
    """A question and its answer, got by asking. Raises ``httpx.HTTPError``."""
    messages = [{"role": "user", "content": prompt}]
    body: dict[str, Any] = {
        "model": model, "messages": messages, "max_tokens": tokens, "temperature": 0,
    }  # fmt: skip
    answer = httpx.post(
        f"{gateway}/v1/chat/completions", json=body, timeout=120,
        headers={"Authorization": f"Bearer {key}"},
    ).raise_for_status().json()  # fmt: skip
    return Question(
        messages=messages, max_tokens=tokens, tokens=answer["usage"]["completion_tokens"],
        text=answer["choices"][0]["message"]["content"],
    )  # fmt: skip
