"""What the command line changes, as a raw client sees it."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from tests.engine_simulator.certificates import Authority
from tests.engine_simulator.process import SimulatorProcess

from .client import PATHS, completion_body, posted, prompt_of

_NAMED = {"request_ids": ["cmpl-x-0"]}


def _status(node: SimulatorProcess, method: str, path: str, **more: object) -> int:
    return httpx.request(method, node.url + path, **more).status_code  # type: ignore[arg-type]


def test_vllm_without_its_flags_has_no_abort_and_no_reset(vllm: SimulatorProcess) -> None:
    assert _status(vllm, "POST", "/inference/v1/abort_requests", json=_NAMED) == 403
    for path in ("/abort_requests", "/reset_prefix_cache", "/pause"):
        assert _status(vllm, "POST", path, json=_NAMED) == 404
    assert _status(vllm, "GET", "/reset_prefix_cache") == 404


def test_vllm_with_its_flags() -> None:
    with SimulatorProcess("vllm", scale_out=True, dev_mode=True, no_prefix_caching=True) as node:
        assert _status(node, "POST", "/inference/v1/abort_requests", json=_NAMED) == 200
        assert _status(node, "POST", "/inference/v1/abort_requests", json={}) == 400
        assert _status(node, "GET", "/reset_prefix_cache") == 405
        prompt = completion_body("vllm", prompt_of("A long question " * 20), stream=False)
        for _ in range(2):
            usage = httpx.post(node.url + "/v1/completions", json=prompt).json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert 'enable_prefix_caching="False"' in httpx.get(node.url + "/metrics").text


def test_metrics_and_slots_can_be_left_out() -> None:
    with SimulatorProcess("vllm", no_metrics=True) as node:
        assert _status(node, "GET", "/metrics") == 404
    with SimulatorProcess("llamacpp", no_metrics=True, no_slots=True) as node:
        assert [_status(node, "GET", path) for path in ("/metrics", "/slots")] == [501, 501]


def test_llamacpp_erases_slots_only_where_it_may_save_them(llamacpp: SimulatorProcess) -> None:
    assert _status(llamacpp, "POST", "/slots/0?action=erase") == 501
    with SimulatorProcess("llamacpp", slot_save_path="/tmp", slots=2) as node:
        assert _status(node, "POST", "/slots/0?action=dance") == 400
        assert _status(node, "POST", "/slots/0?action=erase") == 200


@pytest.mark.parametrize("dialect", ["vllm", "llamacpp"])
def test_an_api_key_is_asked_for_everywhere_but_at_health(dialect: str) -> None:
    with SimulatorProcess(dialect, api_key="secret") as node:
        assert _status(node, "GET", "/health") == 200
        for headers in ({}, {"authorization": "Bearer other"}):
            assert _status(node, "GET", "/v1/models", headers=headers) == 401
        headers = {"authorization": "Bearer secret"}
        assert _status(node, "GET", "/v1/models", headers=headers) == 200
        assert node.stats()["started"] == 0


@pytest.mark.parametrize(
    ("dialect", "comment"), [("vllm", b": keep-alive\n\n"), ("llamacpp", b":\n\n")]
)
def test_comments_keep_a_frozen_stream_alive(dialect: str, comment: bytes) -> None:
    with SimulatorProcess(dialect, sse_keep_alive=0.02) as node:
        node.set_fault(kind="freeze", at_token=3)
        body = completion_body(dialect, prompt_of("[[tokens=30]]"))
        with posted(node.port, PATHS[dialect], body) as sock:
            received = b""
            while received.count(comment) < 3:
                received += sock.recv(1 << 16)


def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("engine")
    flags = {"tls_cert": cert, "tls_key": key, "client_ca": authority.path}
    with SimulatorProcess("vllm", **flags) as node:
        trusting = ssl.create_default_context(cafile=authority.path)
        with pytest.raises(httpx.TransportError):
            httpx.get(node.url + "/health", verify=trusting)
        trusting.load_cert_chain(*authority.sign("client"))
        assert httpx.get(node.url + "/health", verify=trusting).status_code == 200
        assert node.stats()["running"] == 0
