"""What the client has ordered in all is what it gets, over any number of attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engine_simulator.process import SimulatorProcess
from tests.failover.client import ask
from tests.failover.cuts import answer_to, check_reply
from tests.failover.groups import Group, Groups, node_groups
from tests.failover.log import stored_attempts
from tests.stack import Stack

NATURAL = 20
PROMPT = f"Count your words. [[tokens={NATURAL}]][[alphabet=cjk]]"


@pytest.fixture(scope="module", params=["vllm", "llamacpp"])
def groups(request: pytest.FixtureRequest) -> Iterator[Groups]:
    with node_groups(request.param, groups=2, nodes=3) as groups:
        yield groups


@pytest.fixture(scope="module")
def vllm() -> Iterator[Groups]:
    with node_groups("vllm", groups=2) as groups:
        yield groups


def last_request(group: Group, node: int) -> dict[str, Any]:
    return group.nodes[node].stats()["requests"][-1]


def test_max_tokens_before_at_and_after_the_cut(groups: Groups):
    def cut(group: Group, case: tuple[int, int]) -> None:
        token, max_tokens = case
        group.nodes[0].set_fault(kind="reset", at_token=token)
        reply = group.ask(PROMPT, max_tokens=max_tokens)
        dialect = group.nodes[0].dialect
        check_reply(group.sql, reply, answer_to(PROMPT, max_tokens=max_tokens, dialect=dialect))
        attempts = stored_attempts(group.sql, reply.session_id)
        if token < max_tokens:
            kept = attempts[0].last_seq or 0
            assert last_request(group, 1)["max_tokens"] == max_tokens - kept
        else:
            assert len(attempts) == 1, "the answer was full before the fault could strike"
        assert group.nodes[1].stats()["wrong_prefixes"] == 0

    cases = [(token, limit) for token in (0, 7, 19) for limit in (1, 7, 8, 9, 20, 21, 22)]
    groups.sweep(cases, cut)


def test_two_cuts_share_one_budget(groups: Groups):
    def cut(group: Group, max_tokens: int) -> None:
        group.nodes[0].set_fault(kind="reset", at_token=5)
        group.nodes[1].set_fault(kind="reset", at_token=11)
        reply = group.ask(PROMPT, max_tokens=max_tokens)
        check_reply(group.sql, reply, answer_to(PROMPT, max_tokens=max_tokens))
        attempts = stored_attempts(group.sql, reply.session_id)
        assert len(attempts) == 3
        assert last_request(group, 2)["max_tokens"] == max_tokens - (attempts[1].last_seq or 0)

    groups.sweep([12, 15, 40], cut)


def test_min_tokens_count_what_there_is(vllm: Groups):
    def cut(group: Group, case: tuple[int, int]) -> None:
        token, min_tokens = case
        group.nodes[0].set_fault(kind="reset", at_token=token)
        reply = group.ask(PROMPT, min_tokens=min_tokens)
        check_reply(group.sql, reply, answer_to(PROMPT, min_tokens=min_tokens))
        kept = stored_attempts(group.sql, reply.session_id)[0].last_seq or 0
        assert last_request(group, 1)["min_tokens"] == max(0, min_tokens - kept)

    vllm.sweep([(t, m) for m in (1, NATURAL, NATURAL + 9) for t in (0, 1, 2, 9, 20)], cut)


def test_penalties_are_carried_as_a_bias(vllm: Groups):
    def cut(group: Group, token: int) -> None:
        group.nodes[0].set_fault(kind="reset", at_token=token)
        reply = group.ask(PROMPT, frequency_penalty=0.5, presence_penalty=0.25)
        check_reply(group.sql, reply, answer_to(PROMPT))
        first, second = last_request(group, 0), last_request(group, 1)
        assert "logit_bias" not in first["parameters"]
        kept = stored_attempts(group.sql, reply.session_id)[0].last_seq or 0
        assert ("logit_bias" in second["parameters"]) == (kept > 0)
        for request in (first, second):
            assert {"frequency_penalty", "presence_penalty"} <= set(request["parameters"])
        notes = group.sql(
            "SELECT seam_note FROM streaming_attempt WHERE session_id = %s ORDER BY number",
            reply.session_id,
        )
        assert bool(notes[1][0]) == (kept > 0), "what a bias cannot carry is written down"

    vllm.sweep(range(0, NATURAL, 3), cut)


def test_a_seed_is_made_up_once(groups: Groups):
    def cut(group: Group, token: int) -> None:
        group.nodes[0].set_fault(kind="reset", at_token=token)
        reply = group.ask(PROMPT, temperature=1)
        seeds = {last_request(group, 0)["seed"], last_request(group, 1)["seed"]}
        assert len(seeds) == 1
        assert None not in seeds
        check_reply(group.sql, reply, answer_to(PROMPT, temperature=1, seed=seeds.pop()))

    groups.sweep([1, 7, 13], cut)


def test_a_node_with_too_little_room_is_passed_over(start_stack: Callable[..., Stack]):
    """Its context would have ended the answer; a larger one goes on."""
    answer = answer_to(PROMPT)
    with (
        SimulatorProcess() as first,
        SimulatorProcess(max_model_len=answer.prompt_tokens + 6) as small,
        SimulatorProcess() as large,
    ):
        nodes = [
            f"first=vllm+{first.url}?weight=1000",
            f"small=vllm+{small.url}?weight=30",
            f"large=vllm+{large.url}",
        ]
        stack = start_stack(engine_nodes=nodes)
        first.set_fault(kind="reset", at_token=10)
        reply = ask(stack.gateway().url, stack.api_key(), PROMPT)
        check_reply(stack.sql, reply, answer)
        attempts = stored_attempts(stack.sql, reply.session_id)
        assert [attempt.node for attempt in attempts] == ["first", "large"]
        assert small.stats()["started"] == 0


def test_a_prompt_too_long_for_one_node_goes_to_another(start_stack: Callable[..., Stack]):
    answer = answer_to(PROMPT)
    with (
        SimulatorProcess(max_model_len=answer.prompt_tokens) as small,
        SimulatorProcess(max_model_len=answer.prompt_tokens + 60) as large,
    ):
        nodes = [f"small=vllm+{small.url}", f"large=vllm+{large.url}"]
        stack = start_stack(engine_nodes=nodes)
        key = stack.api_key()
        check_reply(stack.sql, ask(stack.gateway().url, key, PROMPT), answer)
        reply = ask(stack.gateway().url, key, PROMPT * 10)
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")


def test_a_parameter_goes_to_the_engine_that_has_it(start_stack: Callable[..., Stack]):
    with SimulatorProcess("llamacpp") as without, SimulatorProcess() as having:
        nodes = [f"without=llamacpp+{without.url}", f"having=vllm+{having.url}"]
        stack = start_stack(engine_nodes=nodes)
        key = stack.api_key()
        reply = ask(stack.gateway().url, key, PROMPT, min_tokens=NATURAL + 2)
        check_reply(stack.sql, reply, answer_to(PROMPT, min_tokens=NATURAL + 2))
        assert [a.node for a in stored_attempts(stack.sql, reply.session_id)] == ["having"]
