"""The shapes of vLLM's endpoints, as read in its source and measured on 0.32."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from tests.engine_simulator.model import expected_answer, visible_text
from tests.engine_simulator.process import SimulatorProcess
from tests.engine_simulator.vocabulary import incomplete_tail, text_bytes

from .client import ask, completion_body, posted, prompt_of, question

_ASK = "Shapes [[tokens=30]]"


def _post(node: SimulatorProcess, path: str, body: dict) -> httpx.Response:
    return httpx.post(node.url + path, json=body)


def test_stream_of_ids(vllm: SimulatorProcess) -> None:
    prompt = prompt_of(_ASK)
    body = completion_body("vllm", prompt, stream_options={"include_usage": True})
    seen = ask(vllm, body, X_Request_Id="gw-1")
    answer = expected_answer(question(_ASK))
    assert (seen.ids, seen.text, seen.finish) == (answer.token_ids, answer.text, "stop")
    assert seen.saw_done
    first, *others = [event["choices"][0] for event in seen.events[:-1]]
    assert first["prompt_token_ids"] == prompt
    assert all(choice["prompt_token_ids"] is None for choice in others)
    assert others[-1]["text"] == ""
    assert others[-1]["stop_reason"] is None
    assert {event["id"] for event in seen.events} == {"cmpl-gw-1"}
    usage = seen.events[-1]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == answer.completion_tokens
    assert usage["usage"]["prompt_tokens"] == answer.prompt_tokens == len(prompt)
    assert usage["system_fingerprint"].startswith("vllm-")


@pytest.mark.parametrize("alphabet", ["emoji", "cjk", "control", "nasty", "mixed"])
def test_continues_from_every_token(vllm: SimulatorProcess, alphabet: str) -> None:
    text = f"Cut me [[tokens=25]][[alphabet={alphabet}]]"
    prompt, answer = prompt_of(text), expected_answer(question(text))
    with httpx.Client(base_url=vllm.url) as client:
        for said in range(25):
            body = completion_body("vllm", prompt + answer.token_ids[:said], stream=False)
            result = client.post("/v1/completions", json=body).json()
            assert result["choices"][0]["token_ids"] == answer.token_ids[said:]
    assert vllm.stats()["wrong_prefixes"] == 0


def test_prompt_that_ends_inside_a_character_leaks_into_the_answer(vllm: SimulatorProcess) -> None:
    text = "Leak [[tokens=20]][[alphabet=emoji]]"
    prompt, answer = prompt_of(text), expected_answer(question(text))
    cut = next(n for n in range(20) if incomplete_tail(text_bytes(answer.token_ids[:n])))
    seen = ask(vllm, completion_body("vllm", prompt + answer.token_ids[:cut]))
    assert seen.ids == answer.token_ids[cut:]
    assert seen.text.startswith(visible_text(prompt))
    assert seen.text.endswith(answer.text[-5:])


def test_usage_in_every_chunk(vllm: SimulatorProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    seen = ask(vllm, completion_body("vllm", prompt_of(_ASK), stream_options=options))
    counts = [event["usage"]["completion_tokens"] for event in seen.events]
    assert counts == [*range(1, 32), 31]


def test_text_prompts_parse_control_tokens(vllm: SimulatorProcess) -> None:
    answer = expected_answer(question(_ASK))
    rendered = f"<|im_start|>user\n{_ASK}<|im_end|>\n<|im_start|>assistant\n"
    seen = ask(vllm, completion_body("vllm", rendered))
    assert seen.text == answer.text
    tokens = _post(vllm, "/tokenize", {"prompt": rendered}).json()["tokens"]
    assert tokens == _post(vllm, "/tokenize", {"messages": question(_ASK)}).json()["tokens"]
    assert _post(vllm, "/detokenize", {"tokens": tokens}).json() == {"prompt": rendered}


def test_limits_are_checked(vllm: SimulatorProcess) -> None:
    prompt = prompt_of(_ASK)
    for bad in (
        completion_body("vllm", prompt, 0),
        completion_body("vllm", prompt, 9000),
        completion_body("vllm", [1, 10**6]),
        completion_body("vllm", prompt, n=2),
    ):
        answer = _post(vllm, "/v1/completions", bad)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "BadRequestError"
    assert _post(vllm, "/v1/completions", {"prompt": "x", "model": "no"}).status_code == 404
    assert ask(vllm, completion_body("vllm", prompt, 3)).finish == "length"


def test_wrong_prefix_is_refused_and_counted() -> None:
    with SimulatorProcess("vllm") as node:
        body = completion_body("vllm", [*prompt_of(_ASK), 300, 301])
        seen = ask(node, body)
        assert (seen.status, seen.document["error"]["code"]) == (400, "wrong_prefix")
        assert node.stats()["wrong_prefixes"] == 1


def test_stop_string_is_held_back_and_cut(vllm: SimulatorProcess) -> None:
    text = "Stop [[tokens=40]][[alphabet=plain]]"
    answer = expected_answer(question(text))
    stop = answer.text[60:66]
    seen = ask(vllm, completion_body("vllm", prompt_of(text), stop=[stop]))
    assert seen.text == answer.text[: answer.text.index(stop)]
    last = seen.events[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    shown = "".join(event["choices"][0]["text"] for event in seen.events[:8])
    assert len(answer.text) > len(shown)
    assert answer.text.startswith(shown)


def test_stop_token_and_minimum(vllm: SimulatorProcess) -> None:
    prompt, answer = prompt_of(_ASK), expected_answer(question(_ASK))
    stop = answer.token_ids[10]
    seen = ask(vllm, completion_body("vllm", prompt, stop_token_ids=[stop]))
    assert seen.ids == answer.token_ids[: answer.token_ids.index(stop) + 1]
    longer = ask(vllm, completion_body("vllm", prompt, min_tokens=50))
    assert longer.ids == expected_answer(question(_ASK), min_tokens=50).token_ids


def test_chat(vllm: SimulatorProcess) -> None:
    answer = expected_answer(question(_ASK))
    path = "/v1/chat/completions"
    body = {"messages": question(_ASK), "stream": True, "temperature": 0, "return_token_ids": True}
    seen = ask(vllm, body, path)
    first = seen.events[0]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["prompt_token_ids"] == prompt_of(_ASK)
    text = "".join(event["choices"][0]["delta"]["content"] for event in seen.events)
    assert (text, seen.ids, seen.finish) == (answer.text, answer.token_ids, "stop")

    reused = {"prompt_token_ids": prompt_of(_ASK) + answer.token_ids[:9]}
    rest = ask(vllm, {**body, "kv_transfer_params": reused}, path)
    assert rest.ids == answer.token_ids[9:]

    half = [*question(_ASK), {"role": "assistant", "content": answer.text[:8]}]
    flags = {"continue_final_message": True, "add_generation_prompt": False, "stream": False}
    rest_text = _post(vllm, path, {**body, "messages": half, **flags}).json()
    assert rest_text["choices"][0]["message"]["content"] == answer.text[8:]
    refused = _post(vllm, path, {**body, "messages": half, "continue_final_message": True})
    assert refused.status_code == 400


def test_lone_surrogate(vllm: SimulatorProcess, llamacpp: SimulatorProcess) -> None:
    text = "Poison [[tokens=9]][[surrogate@4]]"
    for node in (vllm, llamacpp):
        seen = ask(node, completion_body(node.dialect, prompt_of(text)))
        assert b"\\ud800" in seen.body
        assert seen.text == expected_answer(question(text)).text


def test_abort_ends_only_the_named_request_and_no_name_means_all() -> None:
    with SimulatorProcess("vllm", pace=50, dev_mode=True) as node:
        body = completion_body("vllm", prompt_of("[[tokens=900]]"), 1000)
        with posted(node.port, "/v1/completions", body, X_Request_Id="a-1") as sock:
            sock.recv(100)
            assert (
                _post(node, "/abort_requests", {"request_ids": ["cmpl-a-1"]}).json()["aborted"] == 0
            )
            assert node.stats()["running"] == 1
            assert _post(node, "/abort_requests", {"request_ids": ["cmpl-a-1-0"]}).json()["aborted"]
            tail = b""
            while not tail.endswith(b"0\r\n\r\n"):
                tail += sock.recv(1 << 16)
            assert b'"finish_reason":"abort"' in tail
            assert b"data: [DONE]" in tail
        seen: list = []
        thread = threading.Thread(target=lambda: seen.append(ask(node, body)))
        thread.start()
        time.sleep(0.3)
        _post(node, "/abort_requests", {})
        thread.join(5)
        assert seen[0].finish == "abort"


def test_pause_keep_freezes_and_resume_goes_on() -> None:
    with SimulatorProcess("vllm", pace=200, dev_mode=True) as node:
        text = "[[tokens=60]]"
        with posted(node.port, "/v1/completions", completion_body("vllm", prompt_of(text))) as sock:
            sock.recv(1 << 16)
            httpx.post(node.url + "/pause?mode=keep")
            time.sleep(0.05)
            before = node.stats()["generated_tokens"]
            time.sleep(0.15)
            assert node.stats()["generated_tokens"] == before
            assert httpx.get(node.url + "/health").status_code == 200
            httpx.post(node.url + "/resume")
        deadline = time.monotonic() + 3
        while node.stats()["running"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert node.stats()["running"] == 0


def test_prefix_cache_metrics_and_reset() -> None:
    with SimulatorProcess("vllm", dev_mode=True) as node:
        body = completion_body("vllm", prompt_of("A long question " * 20), stream=False)
        usages = [_post(node, "/v1/completions", body).json()["usage"] for _ in range(2)]
        cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
        assert cached[0] == 0
        assert cached[1] > 100
        assert _post(node, "/reset_prefix_cache", {}).json() == {"success": True}
        again = _post(node, "/v1/completions", body).json()["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] == 0
        metrics = httpx.get(node.url + "/metrics").text
        for name in ("num_requests_running", "kv_cache_usage_perc", "generation_tokens_total"):
            assert f"\nvllm:{name}{{" in f"\n{metrics}"
        assert httpx.get(node.url + "/v1/models").json()["data"][0]["max_model_len"] == 8192
        assert httpx.get(node.url + "/version").json() == {"version": "0.32.0"}


def test_text_only_engine_knows_no_ids() -> None:
    with SimulatorProcess("vllm", text_only=True) as node:
        assert _post(node, "/tokenize", {"prompt": "x"}).status_code == 404
        assert ask(node, completion_body("vllm", prompt_of("x"))).status == 400
        seen = ask(node, {"messages": question(_ASK), "stream": True}, "/v1/chat/completions")
        assert seen.ids == []
        assert seen.finish == "stop"
