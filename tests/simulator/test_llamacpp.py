"""The shapes of llama.cpp's endpoints, as measured on a real server."""

from __future__ import annotations

import httpx

from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess
from tests.engine_simulator.vocabulary import (
    CONTROL_IDS,
    TOKENS,
    incomplete_tail,
    spelt_bytes,
    text_bytes,
)

from .client import ask, completion_body, posted, prompt_of, question

_ASK = "Shapes [[tokens=30]][[alphabet=emoji]]"


def test_ids_are_missing_inside_characters_and_only_the_count_tells(
    llamacpp: SimulatorProcess,
) -> None:
    answer = expected_answer(question(_ASK))
    seen = ask(llamacpp, completion_body("llamacpp", prompt_of(_ASK)))
    assert seen.text == answer.text
    assert len(seen.ids) < answer.completion_tokens
    for event in seen.events[:-1]:
        assert event["tokens"] == [answer.token_ids[event["tokens_predicted"] - 1]]
    assert not seen.saw_done


def test_the_end_token_has_an_event_and_is_counted(llamacpp: SimulatorProcess) -> None:
    answer = expected_answer(question(_ASK))
    seen = ask(llamacpp, completion_body("llamacpp", prompt_of(_ASK)))
    before, last = seen.events[-2:]
    assert (before["content"], before["tokens"]) == ("", [CONTROL_IDS["<|im_end|>"]])
    assert before["stop"] is False
    assert last["stop"] is True
    assert (last["stop_type"], last["tokens"], last["content"]) == ("eos", [], "")
    assert last["tokens_predicted"] == answer.completion_tokens
    assert last["tokens_evaluated"] == answer.prompt_tokens
    assert last["timings"]["predicted_n"] == answer.completion_tokens


def test_limit_inside_a_character_loses_it(llamacpp: SimulatorProcess) -> None:
    answer = expected_answer(question(_ASK))
    cut = next(n for n in range(1, 30) if incomplete_tail(text_bytes(answer.token_ids[:n])))
    seen = ask(llamacpp, completion_body("llamacpp", prompt_of(_ASK), cut))
    assert seen.events[-1]["stop_type"] == "limit"
    assert seen.events[-1]["tokens_predicted"] == cut
    assert seen.text == expected_answer(question(_ASK), max_tokens=cut).text
    whole = ask(llamacpp, completion_body("llamacpp", prompt_of(_ASK), cut, stream=False)).document
    assert whole["tokens"] == answer.token_ids[:cut]
    assert whole["content"] == seen.text + "\ufffd"


def test_prompt_that_ends_inside_a_character_gives_replacements(
    llamacpp: SimulatorProcess,
) -> None:
    answer = expected_answer(question(_ASK))
    cut = next(n for n in range(30) if incomplete_tail(text_bytes(answer.token_ids[:n])))
    seen = ask(llamacpp, completion_body("llamacpp", prompt_of(_ASK) + answer.token_ids[:cut]))
    assert seen.text.startswith("\ufffd")
    assert answer.text.endswith(seen.text.lstrip("\ufffd"))


def test_prompts_of_every_kind(llamacpp: SimulatorProcess) -> None:
    answer = expected_answer(question(_ASK))
    rendered = httpx.post(
        llamacpp.url + "/apply-template", json={"messages": question(_ASK)}
    ).json()
    text = rendered["prompt"]
    ids = prompt_of(_ASK)
    mixed = [*ids[:5], spelt_bytes(ids[5:]).decode()]
    for prompt in (text, ids, mixed):
        assert ask(llamacpp, completion_body("llamacpp", prompt)).text == answer.text
    rest = ask(llamacpp, completion_body("llamacpp", [*ids, answer.text[:4]]))
    assert rest.text == answer.text[4:]
    assert ask(llamacpp, completion_body("llamacpp", [])).status == 400
    assert ask(llamacpp, completion_body("llamacpp", [1, 10**7])).status == 400
    assert ask(llamacpp, {"n_predict": 3}).status == 400
    overflow = ask(llamacpp, completion_body("llamacpp", [300] * 9000)).document["error"]
    assert overflow["type"] == "exceed_context_size_error"
    assert (overflow["n_prompt_tokens"], overflow["n_ctx"]) == (9000, 8192)
    assert len(ask(llamacpp, completion_body("llamacpp", ids, 0)).events) >= 1


def test_tokenizing_a_piece_fills_the_hole(llamacpp: SimulatorProcess) -> None:
    answer = expected_answer(question(_ASK))
    seen = ask(llamacpp, completion_body("llamacpp", prompt_of(_ASK)))
    rebuilt: list[int] = []
    with httpx.Client(base_url=llamacpp.url) as client:
        for event in seen.events[:-1]:
            missing = event["tokens_predicted"] - len(rebuilt) - 1
            if missing:
                body = {"content": event["content"], "parse_special": False}
                rebuilt += client.post("/tokenize", json=body).json()["tokens"]
            else:
                rebuilt += event["tokens"]
    assert rebuilt == answer.token_ids


def test_pieces(llamacpp: SimulatorProcess) -> None:
    body = {"content": "<|im_start|> 🌙", "parse_special": True, "with_pieces": True}
    tokens = httpx.post(llamacpp.url + "/tokenize", json=body).json()["tokens"]
    assert tokens[0] == {"id": 1, "piece": "<|im_start|>"}
    assert tokens[1]["piece"] == [32, 240, 159]
    spelt = httpx.post(llamacpp.url + "/detokenize", json={"tokens": [1, 2]}).json()
    assert spelt == {"content": "<|im_start|><|im_end|>"}


def test_stop_word_inside_split_characters(llamacpp: SimulatorProcess) -> None:
    answer = expected_answer(question(_ASK))
    body = completion_body("llamacpp", prompt_of(_ASK), stop=["never said"])
    seen = ask(llamacpp, body)
    assert seen.text == answer.text
    assert all(event["content"] for event in seen.events[:-2])


def test_stop_word(llamacpp: SimulatorProcess) -> None:
    text = "Stop [[tokens=40]][[alphabet=plain]]"
    answer = expected_answer(question(text))
    stop = answer.text[60:66]
    seen = ask(llamacpp, completion_body("llamacpp", prompt_of(text), stop=[stop]))
    assert seen.text == answer.text[: answer.text.index(stop)]
    assert seen.events[-1]["stop_type"] == "word"
    assert seen.events[-1]["stopping_word"] == stop


def test_chat_continues_a_trailing_assistant_message(llamacpp: SimulatorProcess) -> None:
    answer = expected_answer(question(_ASK))
    half = [*question(_ASK), {"role": "assistant", "content": answer.text[:5]}]
    body = {"messages": half, "stream": True, "temperature": 0}
    seen = ask(llamacpp, body, "/v1/chat/completions")
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in seen.events)
    assert text == answer.text[5:]
    assert seen.saw_done


def test_slots_limit_what_runs() -> None:
    with SimulatorProcess("llamacpp", slots=1, pace=50) as node:
        body = completion_body("llamacpp", prompt_of("[[tokens=500]]"), 600)
        with posted(node.port, "/completion", body) as first:
            first.recv(100)
            with posted(node.port, "/completion", body):
                _wait_for(node, running=1, waiting=1)
                metrics = httpx.get(node.url + "/metrics").text
                assert "llamacpp:requests_deferred 1" in metrics
                assert "llamacpp:requests_processing 1" in metrics
                assert httpx.get(node.url + "/props").json()["total_slots"] == 1
                assert httpx.get(node.url + "/slots?fail_on_no_slot=1").status_code == 503
        _wait_for(node, running=0, waiting=0)


def _wait_for(node: SimulatorProcess, **figures: int) -> None:
    for _ in range(300):
        stats = node.stats()
        if all(stats[name] == value for name, value in figures.items()):
            return
    raise AssertionError(f"{figures} never became true: {stats}")


def test_props_and_models(llamacpp: SimulatorProcess) -> None:
    props = httpx.get(llamacpp.url + "/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 8192
    assert props["model_alias"] == "sim-model"
    meta = httpx.get(llamacpp.url + "/v1/models").json()["data"][0]["meta"]
    assert meta == {"n_vocab": len(TOKENS), "n_ctx": 8192}
    assert httpx.get(llamacpp.url + "/health").json() == {"status": "ok"}
