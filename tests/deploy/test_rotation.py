"""Keys change one process after the other: what the old one has signed holds until it is taken away."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from billing.models import UsageSink
from billing.services import sinks
from streaming.models import WebhookEndpoint
from streaming.services import webhooks
from tests.stack import Gateway, Stack

OLD, NEW = ("the old key " * 5, "the new key " * 5)


@pytest.fixture
def stack(start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(gateways=0)


def get(gateway: Gateway, path: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(gateway.url + path, headers=headers, timeout=20).status_code


def minted(gateway: Gateway, key: str) -> str:
    headers = {"Authorization": f"Bearer {key}"}
    order = {"user": "ann", "models": ["sim-model"]}
    answer = httpx.post(
        f"{gateway.url}/v1/embed-tokens", json=order, headers=headers, timeout=20
    ).raise_for_status()
    return answer.json()["token"]


def test_secret_key_and_metrics_token(stack: Stack) -> None:
    """The three steps of docs/operations.md, seen by embed tokens and by Prometheus."""
    key = stack.api_key()
    before = stack.start_gateway(SECRET_KEY=OLD, SECRET_KEY_FALLBACKS=NEW, METRICS_TOKEN="one,two")
    between = stack.start_gateway(SECRET_KEY=NEW, SECRET_KEY_FALLBACKS=OLD, METRICS_TOKEN="two")
    after = stack.start_gateway(SECRET_KEY=NEW)
    old, new = minted(before, key), minted(between, key)
    path = "/v1/models"
    assert [get(before, path, token) for token in (old, new)] == [200, 200]
    assert [get(between, path, token) for token in (old, new)] == [200, 200]
    assert [get(after, path, token) for token in (old, new)] == [401, 200]
    assert [get(before, "/metrics", token) for token in ("one", "two", "three")] == [200, 200, 401]
    assert [get(between, "/metrics", token) for token in ("one", "two")] == [401, 200]


def test_secrets_of_sinks_are_signed_by_both_keys(settings) -> None:
    """Receivers keep the secret that they have, until the old key goes."""

    def secrets(key: str, *fallbacks: str) -> list[bytes]:
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = key, [*fallbacks]
        sink, endpoint = UsageSink(pk=1, secret_version=1), WebhookEndpoint(pk=1, secret_version=1)
        return [*sinks.secrets(sink), *webhooks.secrets(endpoint)]

    old, new = secrets(OLD), secrets(NEW)
    assert len({*old, *new}) == 4
    assert secrets(NEW, OLD) == [new[0], old[0], new[1], old[1]], "the new one first"
