"""Two tenants on one gateway: nobody of either is to reach the other, whatever they send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.durability.reader import question
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

SHOP = "https://shop.example"
"""The origin that acme allows."""
NEWS = "https://news.example:8443"
"""The origin that globex allows."""
EVIL = "https://evil.example"
"""Nobody's."""
MODEL = "sim-model"


@dataclass(frozen=True)
class House:
    """``key`` is acme's, ``other_key`` globex's."""

    stack: Stack
    key: str
    other_key: str
    http: httpx.Client

    @property
    def url(self) -> str:
        return self.stack.gateway(0).url

    @property
    def own(self) -> str:
        """The gateway's own origin."""
        return self.url

    @property
    def socket_url(self) -> str:
        return f"{self.stack.gateway(0).websocket_url}/ws/chat/"

    def ask(
        self, method: str, path: str, credential: str | None = None, **arguments: Any
    ) -> httpx.Response:
        headers = dict(arguments.pop("headers", None) or {})
        if credential is not None:
            headers["Authorization"] = f"Bearer {credential}"
        return self.http.request(method, self.url + path, headers=headers, **arguments)

    def mint(self, user: str = "ann", *, key: str | None = None, **order: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/v1/embed-tokens", key or self.key, json={"user": user, **order})
        assert answer.status_code == 201, answer.text
        return answer.json()

    def token(self, user: str = "ann", **order: Any) -> str:
        return self.mint(user, **order)["token"]

    def chat(self, credential: str, *, headers: dict[str, str] | None = None, **body: Any) -> Any:
        """One whole short answer."""
        return self.ask(
            "POST", "/v1/chat/completions", credential, headers=headers, json=request(**body)
        )

    def session(
        self, credential: str | None, *, headers: dict[str, str] | None = None, **body: Any
    ) -> str:
        answer = self.ask("POST", "/v1/sessions", credential, headers=headers, json=request(**body))
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    def stored_request(self, session: str) -> dict[str, Any]:
        """What a gateway that takes the session over would ask for."""
        (row,) = self.stack.sql(
            "SELECT request FROM streaming_streamsession WHERE id = %s", session
        )
        return json.loads(bytes(row[0]))

    def audited(self, action: str) -> list[dict[str, Any]]:
        rows = self.stack.sql(
            "SELECT data FROM streaming_outboxmessage WHERE kind = 'audit' AND data->>'action' = %s"
            " ORDER BY id",
            action,
        )
        return [row[0] for row in rows]


def request(text: str = "hello", tokens: int = 5, **body: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": question(text, tokens), "temperature": 0, **body}


def code_of(answer: httpx.Response) -> str:
    """The code of an error, whose shape is checked."""
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "resumable"}
    return error["code"]


def errors_in(log: str) -> list[str]:
    """What a gateway has logged as an error; that no Celery worker runs here is none."""
    return [
        line for line in log.split("\n") if " ERROR " in line and "runtime.sweepers" not in line
    ]


@pytest.fixture(scope="package")
def _house() -> Iterator[House]:
    with (
        SimulatorProcess("vllm", pace=150) as engine,
        Stack(
            engine_nodes=[f"a=vllm+{engine.url}"],
            env={"AUTH_CACHE_SECONDS": "0.2", "GRACE_SECONDS": "1", "ALLOW_REHEARSAL": "1"},
        ) as stack,
        httpx.Client(timeout=30) as http,
    ):
        key, other = stack.api_key("acme"), stack.api_key("globex")
        for tenant, origin in (("acme", SHOP), ("globex", NEWS)):
            stack.sql(
                "UPDATE streaming_tenant SET allowed_origins = %s::jsonb WHERE name = %s",
                json.dumps([origin]),
                tenant,
            )
        yield House(stack, key, other, http)


@pytest.fixture
def house(_house: House) -> House:
    return _house
