"""The diagnostic streams themselves, over the wire."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from streaming.services.diagnostics import AT_ONCE
from tests.durability.reader import until
from tests.stack import Stack

STREAM, ENDED = "/v1/diagnostics/stream", "/v1/diagnostics/ended"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {stack.api_key()}"}
    with httpx.Client(base_url=stack.gateway().url, headers=headers, timeout=30) as client:
        yield client


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]


def test_its_pace_and_what_it_tells(client):
    began = time.monotonic()
    answer = client.get(
        STREAM, params={"seconds": 0.5, "interval": 0.1, "pad": 3}, headers={"last-event-id": "7"}
    )
    assert time.monotonic() - began >= 0.5
    opened, *ticks, end = events(answer.text)
    assert answer.headers["x-session-id"] == opened["id"]
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert opened["headers"]["last-event-id"] == "7"
    assert "authorization" not in opened["headers"]
    assert (opened["client"], opened["scheme"]) == ("127.0.0.1", "http")
    assert [tick["n"] for tick in ticks] == [1, 2, 3, 4]
    assert {tick["pad"] for tick in ticks} == {"..."}
    assert all(tick["since"] >= tick["n"] * 0.1 for tick in ticks)
    assert end["complete"] is True
    told = client.get(ENDED, params={"id": opened["id"]}).json()
    assert (told["state"], told["instance"]) == ("completed", opened["instance"])
    assert told["seconds"] >= 0.5


async def test_a_reader_that_leaves_is_seen_to(client, stack):
    with client.stream("GET", STREAM, params={"seconds": 300, "interval": 0.2}) as answer:
        line = next(line for line in answer.iter_lines() if line.startswith("data: "))
    opened = json.loads(line[6:])

    def told() -> Any:
        return client.get(ENDED, params={"id": opened["id"]}).json()

    await until(lambda: told()["state"] == "left")
    assert told()["seconds"] < 60
    # Nobody else's business.
    other = {"authorization": f"Bearer {stack.api_key('globex')}"}
    assert (
        client.get(ENDED, params={"id": opened["id"]}, headers=other).json()["state"] == "unknown"
    )


@pytest.mark.parametrize(
    "params",
    [
        {"seconds": "401"},
        {"seconds": "nan"},
        {"interval": "0.01"},
        {"pad": "5000"},
        {"seconds": "x"},
    ],
)
def test_what_is_refused(client, params):
    answer = client.get(STREAM, params=params)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in params


def test_only_for_api_keys(client):
    token = client.post("/v1/embed-tokens", json={"user": "ann"}).json()["token"]
    for path in (STREAM, f"{ENDED}?id=01a22cd9-f2db-7356-a29a-adf1fc6aafa9"):
        answer = client.get(path, headers={"authorization": f"Bearer {token}"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_permitted")
    assert client.get(ENDED).status_code == 400


async def test_not_too_many_at_once_and_none_holds_up_a_stop(stack):
    headers = {"authorization": f"Bearer {stack.api_key()}"}
    gateway = stack.start_gateway()
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=60) as client:
        streams = [
            await client.send(
                client.build_request("GET", STREAM, params={"seconds": 300, "interval": 300}),
                stream=True,
            )
            for _ in range(AT_ONCE)
        ]
        assert {one.status_code for one in streams} == {200}
        refused = await client.get(STREAM)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        gateway.terminate()
        for one in streams:
            end = events((await one.aread()).decode())[-1]
            assert end["complete"] is False
        assert gateway.wait() == 0
