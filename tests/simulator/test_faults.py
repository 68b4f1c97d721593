"""Each fault, as a raw client sees it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import httpx
import pytest

from tests.engine_simulator.faults import (
    BEFORE_STREAM,
    IN_STREAM,
    OF_THE_NODE,
    PULSE,
    THROUGHOUT,
)
from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess

from .client import Seen, ask, completion_body, posted, prompt_of, question, read_answer

_ASK = "Break [[tokens=30]][[alphabet=plain]]"  # one id an event, in both dialects
_ANSWER = expected_answer(question(_ASK))


def _ask(node: SimulatorProcess, said: int = 0, patience: float = 5, **more: object) -> Seen:
    prompt = prompt_of(_ASK) + _ANSWER.token_ids[:said]
    return ask(node, completion_body(node.dialect, prompt, **more), patience=patience)


def test_every_fault_has_a_test() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert BEFORE_STREAM | THROUGHOUT | OF_THE_NODE | IN_STREAM.keys() <= tested


def test_sigkill(node: SimulatorProcess) -> None:
    node.set_fault(kind="sigkill", at_token=7)
    seen = _ask(node)
    assert seen.ids == _ANSWER.token_ids[:7]
    assert seen.ended in ("fin", "reset")
    node.wait_dead()
    with pytest.raises(httpx.ConnectError):
        httpx.get(node.url + "/health")
    port = node.port
    node.restart()
    assert node.port == port
    assert _ask(node, said=7).ids == _ANSWER.token_ids[7:]


def test_sigstop(node: SimulatorProcess) -> None:
    node.set_fault(kind="sigstop", at_token=5)
    with posted(node.port, _path(node), completion_body(node.dialect, prompt_of(_ASK))) as sock:
        seen = read_answer(sock, patience=0.3)
        assert (seen.ids, seen.ended) == (_ANSWER.token_ids[:5], "silence")
        node.cont()
        rest = read_answer_tail(sock)
    assert rest.endswith(b"0\r\n\r\n")


def _path(node: SimulatorProcess) -> str:
    return "/v1/completions" if node.dialect == "vllm" else "/completion"


def read_answer_tail(sock: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        data += sock.recv(1 << 16)
    return data


def test_reset(node: SimulatorProcess) -> None:
    node.set_fault(kind="reset", at_token=7)
    seen = _ask(node)
    assert (seen.ids, seen.ended, seen.finish) == (_ANSWER.token_ids[:7], "reset", None)


def test_close(node: SimulatorProcess) -> None:
    node.set_fault(kind="close", after_tokens=3)
    seen = _ask(node, said=5)
    assert (seen.ids, seen.ended, seen.finish) == (_ANSWER.token_ids[5:8], "fin", None)
    assert not seen.half_chunk


def test_truncated(node: SimulatorProcess) -> None:
    node.set_fault(kind="truncated", at_token=7)
    seen = _ask(node)
    assert (seen.ids, seen.ended, seen.finish) == (_ANSWER.token_ids[:7], "chunk", None)
    assert not seen.saw_done


def test_half_event(node: SimulatorProcess) -> None:
    node.set_fault(kind="half_event", at_token=7)
    seen = _ask(node)
    assert (seen.ids, seen.ended) == (_ANSWER.token_ids[:7], "chunk")
    assert seen.rest.startswith(b"data: {")


def test_half_event_reset(node: SimulatorProcess) -> None:
    node.set_fault(kind="half_event_reset", at_token=7)
    seen = _ask(node)
    assert (seen.ids, seen.ended, seen.half_chunk) == (_ANSWER.token_ids[:7], "reset", True)


@pytest.mark.parametrize(("kind", "code"), [("error_done", 500), ("error_4xx", 400)])
def test_error_in_the_stream(node: SimulatorProcess, kind: str, code: int) -> None:
    node.set_fault(kind=kind, at_token=7)
    seen = _ask(node)
    assert seen.events[-1]["error"]["code"] == code
    assert (seen.ids, seen.finish) == (_ANSWER.token_ids[:7], None)
    assert seen.saw_done is (node.dialect == "vllm")


test_error_done = test_error_4xx = test_error_in_the_stream


def test_abort_finish(vllm: SimulatorProcess) -> None:
    vllm.set_fault(kind="abort_finish", at_token=7)
    seen = _ask(vllm)
    assert (seen.ids, seen.finish, seen.saw_done) == (_ANSWER.token_ids[:7], "abort", True)


def test_malformed(node: SimulatorProcess) -> None:
    node.set_fault(kind="malformed", at_token=7)
    seen = _ask(node)
    assert (seen.ids, seen.broken_events, seen.ended) == (_ANSWER.token_ids[:7], 1, "chunk")


def test_freeze(node: SimulatorProcess) -> None:
    node.set_fault(kind="freeze", at_token=7)
    seen = _ask(node, patience=0.3)
    assert (seen.ids, seen.ended) == (_ANSWER.token_ids[:7], "silence")
    assert httpx.get(node.url + "/health").status_code == 200
    node.set_fault(kind="freeze", at_token=7, arg=0.1)
    assert _ask(node).ended == "fin"


def test_late_tokens(node: SimulatorProcess) -> None:
    node.set_fault(kind="late_tokens", at_token=7, arg=0.2)
    began = time.monotonic()
    assert _ask(node).ids == _ANSWER.token_ids
    assert time.monotonic() - began > 0.2


def test_freeze_first(node: SimulatorProcess) -> None:
    node.set_fault(kind="freeze_first")
    seen = _ask(node, patience=0.2)
    assert (seen.status, seen.ended) == (0, "silence")
    assert _ask(node).ids == _ANSWER.token_ids


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_status(node: SimulatorProcess, status: int) -> None:
    node.set_fault(kind="status", arg=status, retry_after=2)
    seen = _ask(node)
    assert (seen.status, seen.document["error"]["code"]) == (status, status)
    assert "retry-after: 2" in seen.headers
    assert _ask(node).status == 200


def test_slow(node: SimulatorProcess) -> None:
    node.set_fault(kind="slow", arg=0.02)
    began = time.monotonic()
    assert _ask(node).ids == _ANSWER.token_ids
    assert 0.6 <= time.monotonic() - began < 1.5


def test_jitter(node: SimulatorProcess) -> None:
    node.set_fault(kind="jitter", arg={"median": 0.005, "p999": 0.1, "seed": 3})
    began = time.monotonic()
    assert _ask(node).ids == _ANSWER.token_ids
    assert time.monotonic() - began > 0.05


def test_end_after_seconds(node: SimulatorProcess) -> None:
    node.set_fault(kind="slow", arg=0.02)
    node.set_fault(kind="end_after_seconds", arg=0.2)
    seen = _ask(node)
    assert (seen.finish, seen.ended) == (None, "chunk")
    assert 0 < len(seen.ids) < 30
    assert seen.ids == _ANSWER.token_ids[: len(seen.ids)]


def test_late_usage(node: SimulatorProcess) -> None:
    node.set_fault(kind="late_usage", arg=0.3)
    began = time.monotonic()
    assert _ask(node).ids == _ANSWER.token_ids
    assert time.monotonic() - began > 0.3


def test_refuse(node: SimulatorProcess) -> None:
    node.set_fault(kind="refuse")
    with pytest.raises(httpx.ConnectError):
        httpx.get(node.url + "/health")
    node.clear_faults()
    assert httpx.get(node.url + "/health").status_code == 200


def test_health_503(node: SimulatorProcess) -> None:
    node.set_fault(kind="health_503")
    assert [httpx.get(node.url + "/health").status_code for _ in range(2)] == [503, 503]
    node.clear_faults()
    assert httpx.get(node.url + "/health").status_code == 200


def test_freeze_engine(node: SimulatorProcess) -> None:
    node.set_fault(kind="freeze_engine")
    assert _ask(node, patience=0.2).ids == []
    assert httpx.get(node.url + "/health").status_code == 200
    node.clear_faults()
    assert _ask(node).ids == _ANSWER.token_ids


def test_slow_engine(node: SimulatorProcess) -> None:
    with SimulatorProcess(
        node.dialect, pace=500
    ) as paced:  # an engine without a pace has none to lose
        paced.set_fault(kind="slow_engine", arg=0.02)
        begun = time.monotonic()
        assert _ask(paced).ids == _ANSWER.token_ids
        assert time.monotonic() - begun > 0.02 * (len(_ANSWER.token_ids) - 1)
        paced.clear_faults()
        assert _ask(paced).ids == _ANSWER.token_ids


def test_reset_connections(node: SimulatorProcess) -> None:
    node.set_fault(kind="slow", arg=0.01)
    with posted(node.port, _path(node), completion_body(node.dialect, prompt_of(_ASK))) as sock:
        assert sock.recv(1 << 16)
        node.set_fault(kind="reset_connections")
        seen = read_answer(sock)
    assert seen.ended == "reset"
    node.clear_faults()
    assert _ask(node).ids == _ANSWER.token_ids


def test_sigterm_silent(node: SimulatorProcess) -> None:
    node.set_fault(kind="slow", arg=0.01)
    node.set_fault(kind="sigterm_silent")
    with posted(node.port, _path(node), completion_body(node.dialect, prompt_of(_ASK))) as sock:
        assert sock.recv(1 << 16)
        node.terminate()
        seen = read_answer(sock, patience=0.3)
        assert (seen.ended, node.is_alive) == ("silence", True)
        with pytest.raises(httpx.ConnectError):
            httpx.get(node.url + "/health")
    node.clear_faults()
    node.terminate()
    node.wait_dead()


def test_zombie(node: SimulatorProcess) -> None:
    node.set_fault(kind="slow", arg=0.01)
    node.set_fault(kind="zombie")
    with posted(node.port, _path(node), completion_body(node.dialect, prompt_of(_ASK))) as sock:
        assert sock.recv(1 << 16)
    _wait(lambda: node.stats()["outcomes"].get("zombie"))
    record = node.stats()["requests"][-1]
    assert record["produced"] == len(_ANSWER.token_ids)


def test_an_abort_by_id_ends_a_zombie() -> None:
    with SimulatorProcess("vllm", pace=20, scale_out=True) as node:
        node.set_fault(kind="zombie")
        body = completion_body("vllm", prompt_of("[[tokens=900]]"), 1000)
        with posted(node.port, "/v1/completions", body, X_Request_Id="a") as sock:
            assert sock.recv(1 << 16)
        before = node.stats()["generated_tokens"]
        _wait(lambda: node.stats()["generated_tokens"] > before)
        assert node.stats()["running"] == 1
        ids = {"request_ids": ["cmpl-a-0"]}
        assert httpx.post(node.url + "/inference/v1/abort_requests", json=ids).status_code == 200
        _wait(lambda: node.stats()["running"] == 0)


def test_kv_leak(node: SimulatorProcess) -> None:
    node.set_fault(kind="kv_leak")
    _ask(node)
    leaked = node.stats()["kv_usage"]
    assert leaked > 0
    _ask(node)  # one order, one leak
    assert node.stats()["kv_usage"] == leaked


def test_leaked_blocks_give_way_to_running_requests() -> None:
    with SimulatorProcess("vllm", kv_blocks=16) as node:
        node.set_fault(kind="kv_leak", times=-1)
        for _ in range(9):
            _ask(node)
        assert 0 < node.stats()["kv_usage"] <= 1
        assert _ask(node).ids == _ANSWER.token_ids


def _wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_faults_of_requests_spare_a_pulse_unless_they_name_it(node: SimulatorProcess) -> None:
    pulse = completion_body(node.dialect, [100], 1)
    node.set_fault(kind="status", arg=500, times=-1)
    assert ask(node, pulse).status == 200
    assert _ask(node).status == 500
    node.set_fault(kind="status", arg=503, match=PULSE)
    assert [ask(node, pulse).status for _ in range(2)] == [503, 200]
    stats = node.stats()
    assert (stats["pulses"], stats["requests"][-1]["prompt_tokens"] > 1) == (3, True)


def test_wrong_ids_echo(vllm: SimulatorProcess) -> None:
    vllm.set_fault(kind="wrong_ids_echo")
    echoed = [_ask(vllm).events[0]["choices"][0]["prompt_token_ids"] for _ in range(2)]
    assert echoed[0] != prompt_of(_ASK)
    assert echoed[1] == prompt_of(_ASK)


def test_wrong_model(node: SimulatorProcess) -> None:
    node.set_fault(kind="wrong_model", arg="other")
    assert _ask(node).events[-1]["model"] == "other"


def test_match_and_times(node: SimulatorProcess) -> None:
    node.set_fault(kind="truncated", at_token=2, match="Break", times=2)
    other = completion_body(node.dialect, prompt_of("Spare me [[tokens=10]]"))
    assert ask(node, other).finish in ("stop", "eos")
    assert [_ask(node).finish is None for _ in range(3)] == [True, True, False]


def test_a_continuation_past_the_token_is_spared_and_one_at_it_is_hit(
    node: SimulatorProcess,
) -> None:
    node.set_fault(kind="truncated", at_token=7, times=-1)
    assert _ask(node, said=7).ids == []
    assert _ask(node, said=8).ids == _ANSWER.token_ids[8:]


def test_unknown_faults_are_refused(node: SimulatorProcess) -> None:
    with pytest.raises(httpx.HTTPStatusError):
        node.set_fault(kind="no_such_thing")
    with pytest.raises(httpx.HTTPStatusError):
        node.set_fault(kind="reset", nonsense=1)


def test_stopped_process_answers_nothing_and_goes_on(node: SimulatorProcess) -> None:
    node.stop()
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(node.url + "/health", timeout=0.3)
    node.cont()
    assert httpx.get(node.url + "/health").status_code == 200
