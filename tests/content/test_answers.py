"""Content rules on answers of real engines and gateways, however these die."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from streaming.core.chunks import UNKNOWN_ID
from streaming.core.content_rules import Action, Rule
from tests.content import model
from tests.content.stored_rules import put, wait_until_applied
from tests.engine_simulator.model import Answer
from tests.failover.cuts import answer_to
from tests.failover.groups import Group, Groups, node_groups
from tests.failover.log import stored_attempts, stored_log, stored_session

SPOKEN = 60
PROMPT = f"Say it all. [[tokens={SPOKEN}]][[alphabet=plain]]"
LONGEST = 256


@pytest.fixture(scope="module", params=["vllm", "llamacpp", "regenerate"])
def groups(request: pytest.FixtureRequest) -> Iterator[Groups]:
    if request.param == "regenerate":
        options = "?continuation=regenerate&template=chatml"
        with node_groups(
            "vllm", groups=2, options=options, template="chatml", text_only=True
        ) as groups:
            yield groups
    else:
        with node_groups(request.param, groups=2) as groups:
            yield groups


def rules_for(answer: Answer) -> list[Rule]:
    """Masks over several tokens and inside one, and a flag."""
    words = answer.text.split()
    some = [words[at] for at in (8, 9, 24, 25, 26)]
    return [
        Rule("phrase", f"{some[0]} {some[1]}", Action.MASK, replacement="[…]"),
        Rule("two", rf"\b{some[2]}.{{1,20}}{some[4]}", Action.MASK, is_regex=True, replacement="#"),
        Rule("letter", r"\b[wt][a-z]+\b", Action.MASK, is_regex=True, replacement="*"),
        Rule("noted", words[32], Action.FLAG),
    ]


def events_of(group: Group, session_id: str) -> list[dict[str, Any]]:
    rows = group.sql(
        "SELECT data::text FROM streaming_sessionevent WHERE session_id = %s AND kind = 'filtered'"
        " ORDER BY id",
        session_id,
    )
    return [json.loads(data) for (data,) in rows]


def test_masks_and_flags_are_the_same_wherever_an_engine_dies(groups: Groups) -> None:
    answer = answer_to(PROMPT)
    rules = rules_for(answer)
    shown, names = model.whole(rules, answer.text, LONGEST)
    assert {"phrase", "two", "letter", "noted"} == set(names)
    put(groups.all[0].sql, rules)
    wait_until_applied(lambda: groups.all[0].ask(PROMPT).text, shown)

    def cut(group: Group, token: int) -> None:
        group.nodes[0].set_fault(kind="sigkill" if token % 15 == 0 else "reset", at_token=token)
        reply = group.ask(PROMPT)
        assert (reply.text, reply.finish_reason, reply.error) == (shown, answer.finish_reason, None)
        log = stored_log(group.sql, reply.session_id)
        assert log.text == shown
        if UNKNOWN_ID not in log.ids:  # (they are, where the nodes take text only)
            assert log.ids == answer.token_ids
        assert all(node.stats()["wrong_prefixes"] == 0 for node in group.nodes if node.is_alive)
        assert sorted(event["rule"] for event in events_of(group, reply.session_id)) == names
        attempts = stored_attempts(group.sql, reply.session_id)
        assert len(attempts) == 2
        assert attempts[0].discarded + (attempts[0].last_seq or 0) <= token + 1
        ((review, action, rule),) = group.sql(
            "SELECT review, content_action, content_rule FROM streaming_streamsession WHERE id = %s",
            reply.session_id,
        )
        assert (review, action, rule) == ("needed", "flag", "noted")

    groups.sweep(range(0, SPOKEN, 5), cut)


def test_a_stop_ends_the_answer_wherever_an_engine_dies(groups: Groups) -> None:
    answer = answer_to(PROMPT)
    words = answer.text.split()
    rules = [Rule("no further", f"{words[30]} {words[31]} {words[32]}", Action.STOP)]
    shown, _ = model.whole(rules, answer.text, LONGEST)
    assert shown != answer.text
    put(groups.all[0].sql, rules)
    wait_until_applied(lambda: groups.all[0].ask(PROMPT).text, shown)

    def cut(group: Group, token: int) -> None:
        group.nodes[0].set_fault(kind="reset", at_token=token)
        reply = group.ask(PROMPT)
        assert (reply.text, reply.finish_reason, reply.is_done) == (shown, "content_filter", True)
        log = stored_log(group.sql, reply.session_id)
        assert log.text == shown
        if UNKNOWN_ID not in log.ids:
            assert log.ids == answer.token_ids[: len(log.ids)]
        session = stored_session(group.sql, reply.session_id)
        assert (session["state"], session["finish_reason"]) == ("completed", "content_filter")
        assert session["completion_tokens"] == len(log.ids)
        assert reply.counted == (answer.prompt_tokens, len(log.ids))
        (event,) = events_of(group, reply.session_id)
        assert event == {"rule": "no further", "action": "stop", "count": 1}
        ((audited,),) = group.sql(
            "SELECT data::text FROM streaming_outboxmessage WHERE session_id = %s AND kind = 'audit'",
            reply.session_id,
        )
        said = json.loads(audited)
        assert (said["action"], said["actor"]) == ("content.stop", "system")
        assert said["data"]["rule"] == "no further"
        assert said["data"]["seq"] == len(log.ids)
        assert not any(word in audited for word in rules[0].pattern.split() if len(word) > 4)

    groups.sweep(range(9, SPOKEN, 15), cut)
