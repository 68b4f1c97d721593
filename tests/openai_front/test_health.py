"""``/healthz`` and ``/readyz``: only the database decides; what else is missing is told."""

from __future__ import annotations

import time

import httpx

from tests.engine_simulator.process import SimulatorProcess


def ready(url: str) -> tuple[int, str, list[str]]:
    began = time.monotonic()
    response = httpx.get(url + "/readyz", timeout=10)
    assert time.monotonic() - began < 3.0, "a probe must not wait that long"
    report = response.json()
    return response.status_code, report["status"], [r.split(":")[0] for r in report["reasons"]]


def test_all_is_well(front) -> None:
    assert httpx.get(front.url + "/healthz").json() == {"status": "ok"}
    assert ready(front.url) == (200, "ok", [])
    assert httpx.head(front.url + "/healthz").status_code == 200


def test_redis_and_nodes_missing_is_degraded(start_stack) -> None:
    with SimulatorProcess("vllm") as engine:
        stack = start_stack(private_redis=True, engine_nodes=[f"a=vllm+{engine.url}"])
        url = stack.gateway().url
        assert ready(url) == (200, "ok", [])
        stack.stop_redis()
        assert ready(url) == (200, "degraded", ["redis"])
        # Without Redis answers are given all the same.
        answer = httpx.post(
            url + "/v1/chat/completions",
            headers={"authorization": f"Bearer {stack.api_key()}"},
            json={"model": "sim-model", "messages": [{"role": "user", "content": "Hi"}]},
        )
        assert answer.status_code == 200
        stack.start_redis()
        assert ready(url) == (200, "ok", [])


def test_no_nodes_is_degraded_and_a_request_is_503(start_stack) -> None:
    stack = start_stack()
    assert ready(stack.gateway().url) == (200, "degraded", ["nodes"])
    answer = httpx.post(
        stack.gateway().url + "/v1/chat/completions",
        headers={"authorization": f"Bearer {stack.api_key()}"},
        json={"model": "sim-model", "messages": [{"role": "user", "content": "Hi"}]},
    )
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_healthy_node"
    assert answer.headers["retry-after"] == "1"
