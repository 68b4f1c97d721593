"""Rows as gateways write them, and requests on real engines, for tests of the sweeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import httpx
import psycopg
from django.db import connection
from django.utils import timezone

from streaming.core.digest import RunningDigest
from streaming.core.ids import reference_code
from streaming.fleet.gateway_lock import ADVISORY_CLASS
from streaming.models import (
    Attempt,
    GatewayInstance,
    InferenceNode,
    SessionFence,
    StreamSession,
    Tenant,
    TokenCheckpoint,
)
from tests.durability.reader import question
from tests.engine_simulator.process import SimulatorProcess


def add_gateway(**columns: Any) -> GatewayInstance:
    """A process that holds no lock: long dead, unless the test takes its lock."""
    long_ago = timezone.now() - timedelta(minutes=1)
    columns = {"started_at": long_ago, "heartbeat_at": long_ago, **columns}
    return GatewayInstance.objects.create(hostname="h", pid=1, **columns)


@contextmanager
def living_gateway() -> Iterator[GatewayInstance]:
    """A process that lives: it holds its lock, by a connection of its own."""
    instance = add_gateway(heartbeat_at=timezone.now())
    parameters = connection.get_connection_params()
    names = ("host", "port", "user", "password", "dbname")
    with psycopg.connect(**{n: parameters[n] for n in names if parameters.get(n)}) as holder:
        holder.execute("SELECT pg_advisory_lock(%s, %s)", (ADVISORY_CLASS, instance.pk))
        yield instance


def add_session(owner: GatewayInstance | None, tokens: int = 0, **columns: Any) -> StreamSession:
    """A session in the midst of its answer, with ``tokens`` in its log."""
    tenant, _ = Tenant.objects.get_or_create(name="acme")
    columns = {"state": "streaming", "tenant": tenant, "model": "m", **columns}
    session = StreamSession.objects.create(
        reference=reference_code(), protocol="openai",
        model_requested="m", request=b"{}", owner=owner, **columns,
    )  # fmt: skip
    day = session.expires_on
    SessionFence.objects.create(session=session, epoch=1, durable_seq=tokens, expires_on=day)
    if tokens:
        digest = RunningDigest()
        digest.update(b"\1\0\0\0" * tokens, b"x" * tokens)
        TokenCheckpoint.objects.create(
            session=session, epoch=1, attempt=1, first_seq=1, last_seq=tokens,
            token_ids=b"\1\0\0\0" * tokens, text=b"x" * tokens,
            text_ends=b"".join((n + 1).to_bytes(4, "little") for n in range(tokens)),
            digest=digest.digest(), created_at=timezone.now(), expires_on=day,
        )  # fmt: skip
    return session


def add_attempt(
    session: StreamSession, node: InferenceNode | None = None, **columns: Any
) -> Attempt:
    """Its first attempt; it runs unless ``ended_at`` is given."""
    columns = {"number": 1, "started_at": timezone.now() - timedelta(minutes=1), **columns}
    name = "a" if node is None else node.name
    return Attempt.objects.create(
        session=session, epoch=1, node=node, node_name=name, engine_request_id=f"{session.pk}-1",
        **columns,
    )  # fmt: skip


def ended_attempt(node: InferenceNode | None, seconds_ago: float = 10.0, **columns: Any) -> Attempt:
    """An attempt of a session that has ended; its engine has not been looked at."""
    at = timezone.now() - timedelta(seconds=seconds_ago)
    session = add_session(None, state="cancelled", ended_at=at)
    columns = {"end_reason": "cancelled", "reclaim": "pending", "ended_at": at, **columns}
    return add_attempt(session, node, **columns)


def add_node(engine: SimulatorProcess, **columns: Any) -> InferenceNode:
    """A node that is up, as the gateways' probes have found it."""
    columns = {
        "name": f"node-{engine.port}",
        "dialect": engine.dialect,
        "base_url": engine.url,
        "health": "up",
        "models_served": ["sim-model"],
        "capabilities": {"figures": True},
        **columns,
    }
    return InferenceNode.objects.create(**columns)


class Requests:
    """Requests that run on an engine, by their id."""

    def __init__(self, engine: SimulatorProcess) -> None:
        self._engine = engine
        self._client = httpx.Client(base_url=engine.url, timeout=10)
        self._open: dict[str, tuple[httpx.Response, Iterator[bytes]]] = {}

    def begin(self, request_id: str, tokens: int = 5000) -> None:
        """It runs when this returns."""
        body = {"model": "sim-model", "messages": question("Go on", tokens)}
        prompt = self._client.post("/tokenize", json=body).json()["tokens"]
        request = self._client.build_request(
            "POST", "/v1/completions", headers={"x-request-id": request_id},
            json={"prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0},
        )  # fmt: skip
        response = self._client.send(request, stream=True)
        chunks = response.iter_raw()
        next(chunks)
        self._open[request_id] = response, chunks  # an iterator that is dropped ends the request

    def read(self, request_id: str) -> None:
        """Take what comes next of its answer."""
        next(self._open[request_id][1], b"")

    def leave(self, request_id: str) -> None:
        """Close its connection."""
        response, _ = self._open.pop(request_id)
        response.close()

    def close(self) -> None:
        for request_id in list(self._open):
            self.leave(request_id)
        self._client.close()


def run_together(task: Callable[[], Any], times: int = 3) -> list[Any]:
    """The results of several runs at once, each on a connection of its own. Raises what one raised."""
    together = threading.Barrier(times)

    def run() -> Any:
        together.wait()
        try:
            return task()
        finally:
            connection.close()

    with ThreadPoolExecutor(times) as threads:
        runs = [threads.submit(run) for _ in range(times)]
    return [each.result() for each in runs]
