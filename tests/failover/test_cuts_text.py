"""Nodes that take no token ids: continued from text, or asked again and compared.

What the model says here begins and ends with white space, or spells control tokens, or is full of
what transports trip over. No spelling may reach an engine as text, where it would turn real.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streaming.core.templates import spells_control
from tests.failover.cuts import answer_to, check_reply
from tests.failover.groups import Group, Groups, node_groups
from tests.failover.log import stored_attempts, stored_log

TOKENS = 28
ALPHABETS = ("nasty", "control")
KINDS = [
    ("vllm", "text", "chatml"),
    ("vllm", "text", "llama3"),
    ("vllm", "regenerate", "llama3"),
    ("llamacpp", "text", "chatml"),
    ("llamacpp", "text", "llama3"),
    ("llamacpp", "regenerate", "chatml"),
]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Groups, str, str]]:
    dialect, continuation, template = request.param
    options = f"?continuation={continuation}&template={template}"
    with node_groups(
        dialect, groups=2, options=options, template=template, text_only=dialect == "vllm"
    ) as groups:
        yield groups, continuation, template


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_the_connection_breaks_after_every_token(nodes: tuple[Groups, str, str], alphabet: str):
    groups, continuation, template = nodes
    prompt = f"Say something odd. [[tokens={TOKENS}]][[alphabet={alphabet}]]"
    grades = set()

    def cut(group: Group, token: int) -> None:
        group.nodes[0].set_fault(kind="reset", at_token=token)
        answer = answer_to(prompt, template=template)
        reply = group.ask(prompt)
        check_reply(group.sql, reply, answer)
        attempts = stored_attempts(group.sql, reply.session_id)
        log = stored_log(group.sql, reply.session_id)
        assert [attempt.end_reason for attempt in attempts] == ["connection_reset", "finished"]
        known = "".join(log.pieces[: attempts[0].last_seq or 0])
        if not known:
            assert attempts[1].grade == ""
        elif continuation == "text" and not spells_control(known):
            assert attempts[1].grade == "text"
        else:
            assert attempts[1].grade == "regenerated"
        grades.add(attempts[1].grade)
        for node in group.nodes:
            assert node.stats()["wrong_prefixes"] == 0

    groups.sweep(range(TOKENS + 1), cut)
    if continuation == "regenerate":
        assert grades <= {"", "regenerated"}
    else:
        assert ("text" if alphabet == "nasty" else "regenerated") in grades
