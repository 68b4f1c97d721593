"""A 400: the client's fault when the answer begins, the seam's when it is to be continued."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.failover.cuts import answer_to, check_reply
from tests.failover.groups import Groups, node_groups
from tests.failover.log import stored_attempts, stored_session

PROMPT = "Is this a good question? [[tokens=20]][[alphabet=plain]]"


@pytest.fixture(scope="module", params=["vllm", "llamacpp"])
def groups(request: pytest.FixtureRequest) -> Iterator[Groups]:
    with node_groups(request.param, groups=1, nodes=3) as groups:
        yield groups


@pytest.fixture
def group(groups: Groups):
    yield groups.all[0]
    for node in groups.all[0].nodes:
        node.clear_faults()
    groups.all[0].make_whole()


def test_at_the_beginning_it_is_the_clients(group):
    group.nodes[0].set_fault(kind="status", arg=400)
    reply = group.ask(PROMPT)
    assert reply.status == 400
    assert reply.error["code"] == "engine_rejected"
    assert [a.node for a in stored_attempts(group.sql, reply.session_id)] == group.node_names()[:1]


def test_inside_the_stream_too(group):
    group.nodes[0].set_fault(kind="error_4xx", at_token=5)
    reply = group.ask(PROMPT)
    assert reply.error["code"] == "engine_rejected"
    assert reply.text == answer_to(PROMPT).text[: len(reply.text)] != ""
    assert not reply.is_done
    assert stored_session(group.sql, reply.session_id)["state"] == "failed"


def test_of_a_continuation_it_is_the_nodes_and_another_goes_on(group):
    group.nodes[0].set_fault(kind="reset", at_token=5)
    group.nodes[1].set_fault(kind="status", arg=400)
    reply = group.ask(PROMPT)
    check_reply(group.sql, reply, answer_to(PROMPT))
    attempts = stored_attempts(group.sql, reply.session_id)
    assert [attempt.node for attempt in attempts] == group.node_names()
    assert [attempt.end_reason for attempt in attempts] == [
        "connection_reset",
        "rejected",
        "finished",
    ]
