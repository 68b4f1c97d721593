"""Faults on order: a test key lets its engine fail where it says, and sees the answer go on."""

from __future__ import annotations

import httpx
import pytest

from tests.engine_simulator.process import SimulatorProcess
from tests.failover.client import ask
from tests.failover.cuts import check_reply, split_answer, whole_tokens
from tests.failover.log import stored_attempts
from tests.stack import Stack

SPOKEN = 24
PROMPT = f"Rehearse it. [[tokens={SPOKEN}]][[alphabet=cjk]]"


@pytest.fixture(scope="module", params=["vllm", "llamacpp"])
def stack(request):
    with (
        SimulatorProcess(request.param) as one,
        SimulatorProcess(request.param) as other,
        Stack(
            engine_nodes=[f"{n}={request.param}+{s.url}" for n, s in zip("ab", (one, other), strict=True)],
            env={"ALLOW_REHEARSAL": "1"},
        ) as stack,
    ):  # fmt: skip
        yield stack
        assert one.stats()["wrong_prefixes"] == other.stats()["wrong_prefixes"] == 0


def rehearse(stack: Stack, order: str, *, is_test: bool = True, number: int = 0):
    key = stack.api_key(is_test=is_test)
    return ask(
        stack.gateway(number).url,
        key,
        PROMPT,
        headers={"X-Unbroken-Rehearse": order, "X-Unbroken-Events": "1"},
    )


def test_two_faults_in_one_answer(stack):
    answer = split_answer(PROMPT)
    reply = rehearse(stack, "kill@5,12")
    check_reply(stack.sql, reply, answer)
    attempts = stored_attempts(stack.sql, reply.session_id)
    ends = [whole_tokens(answer, 5), whole_tokens(answer, 12), SPOKEN + 1]
    assert [attempt.last_seq for attempt in attempts] == ends
    assert [attempt.end_reason for attempt in attempts] == ["rehearsal", "rehearsal", "finished"]
    assert [attempt.grade for attempt in attempts] == ["", "exact", "exact"]
    assert [attempt.node for attempt in attempts] == ["a", "b", "a"]
    names = [name for name, _ in reply.controls]
    assert names == [
        "unbroken.attempt",
        *["unbroken.recovering", "unbroken.attempt", "unbroken.recovered"] * 2,
    ]


@pytest.mark.parametrize("token", range(SPOKEN + 2))
def test_a_fault_after_every_token(stack, token):
    answer = split_answer(PROMPT)
    reply = rehearse(stack, f"kill@{token}")
    check_reply(stack.sql, reply, answer)
    attempts = stored_attempts(stack.sql, reply.session_id)
    if token <= SPOKEN:
        assert (attempts[0].last_seq or 0) == whole_tokens(answer, token)
        assert attempts[0].end_reason == "rehearsal"
    else:
        assert [attempt.end_reason for attempt in attempts] == ["finished"]


@pytest.mark.parametrize("order", ["", "kill", "kill@", "kill@x", "kill@-1", "freeze@5", "kill@5,"])
def test_an_order_that_makes_no_sense_is_refused(stack, order):
    reply = rehearse(stack, order)
    assert reply.status == 400
    assert reply.error["param"] == "X-Unbroken-Rehearse"


def test_an_ordinary_key_may_not(stack):
    reply = rehearse(stack, "kill@5", is_test=False)
    assert reply.status == 400
    assert "test keys only" in reply.error["message"]


def test_an_embed_token_of_a_test_key_may_not(stack):
    url = stack.gateway().url
    key = {"Authorization": f"Bearer {stack.api_key(is_test=True)}"}
    minted = httpx.post(f"{url}/v1/embed-tokens", json={"user": "ann"}, headers=key, timeout=30)
    reply = ask(url, minted.json()["token"], PROMPT, headers={"X-Unbroken-Rehearse": "kill@5"})
    assert reply.status == 400
    assert "not with embed tokens" in reply.error["message"]


def test_nobody_may_where_it_is_not_allowed(stack):
    gateway = stack.start_gateway(ALLOW_REHEARSAL="0")
    try:
        reply = rehearse(stack, "kill@5", number=stack.gateways.index(gateway))
    finally:
        gateway.close()
    assert reply.status == 400
    assert "ALLOW_REHEARSAL" in reply.error["message"]
