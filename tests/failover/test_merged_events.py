"""A busy vLLM puts several tokens into one event, of which the last may only begin a character.

Continued from there, vLLM would print the prompt into the answer (vllm-project/vllm#48853).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests.engine_simulator.process import SimulatorProcess
from tests.failover.client import ask
from tests.failover.cuts import check_reply, split_answer, whole_tokens
from tests.failover.log import stored_attempts
from tests.stack import Stack

SPOKEN = 24
PROMPT = f"Hurry up. [[tokens={SPOKEN}]][[alphabet=cjk]]"


class BusyFront(ThreadingHTTPServer):
    """Stands before an engine; merges its events by ``size``, breaks off after ``events``."""

    daemon_threads = True

    def __init__(self, engine: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.engine = engine
        self.size = 1
        self.events = -1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def merged(self, body: bytes) -> list[bytes]:
        """The events of a stream, ``size`` tokens in each."""
        found = [json.loads(e[6:]) for e in body.decode().split("\n\n") if e.startswith("data: {")]
        tokens = [event for event in found if event["choices"]]
        return [
            f"data: {json.dumps(_joined(tokens[at : at + self.size]))}\n\n".encode()
            for at in range(0, len(tokens), self.size)
        ]


def _joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    choices = [event["choices"][0] for event in events]
    whole = {
        **choices[-1],
        "text": "".join(choice["text"] for choice in choices),
        "token_ids": [token for choice in choices for token in choice["token_ids"]],
        "prompt_token_ids": choices[0]["prompt_token_ids"],
    }
    return {**events[-1], "choices": [whole]}


class _Handler(BaseHTTPRequestHandler):
    server: BusyFront

    def do_GET(self) -> None:
        self._pass_on(httpx.get(self.server.engine + self.path))

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        self._pass_on(httpx.post(self.server.engine + self.path, content=data))

    def _pass_on(self, answer: httpx.Response) -> None:
        events = [answer.content]
        if self.path == "/v1/completions":
            events = self.server.merged(answer.content)
            if self.server.events >= 0:
                events = events[: self.server.events]
        self.send_response(answer.status_code)
        self.end_headers()
        for event in events:
            self.wfile.write(event)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def busy_front(engine: str) -> Iterator[BusyFront]:
    with BusyFront(engine) as front:
        thread = threading.Thread(target=front.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield front
        finally:
            front.shutdown()
            thread.join()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_no_answer_goes_on_from_inside_a_character(start_stack: Callable[..., Stack], size: int):
    answer = split_answer(PROMPT)
    with (
        SimulatorProcess() as engine,
        SimulatorProcess() as other,
        busy_front(engine.url) as front,
    ):
        stack = start_stack(
            engine_nodes=[f"busy=vllm+{front.url}?weight=1000", f"other=vllm+{other.url}"]
        )
        key = stack.api_key()
        front.size = size
        grades = set()
        for front.events in range(SPOKEN // size + 1):
            # The node is suspect after a break, until a probe that follows at once.
            for _ in range(50):
                reply = ask(stack.gateway().url, key, PROMPT)
                check_reply(stack.sql, reply, answer)
                attempts = stored_attempts(stack.sql, reply.session_id)
                if attempts[0].node == "busy":
                    break
            assert [attempt.node for attempt in attempts] == ["busy", "other"]
            known = attempts[0].last_seq or 0
            if known:
                is_whole = whole_tokens(answer, known) == known
                assert attempts[1].grade == ("exact" if is_whole else "regenerated")
                grades.add(attempts[1].grade)
        assert grades == {"exact", "regenerated"}
        assert other.stats()["wrong_prefixes"] == 0
