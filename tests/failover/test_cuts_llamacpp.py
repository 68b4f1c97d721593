"""llama.cpp nodes die by SIGKILL after every token of an answer; the reader notices nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.failover.cuts import SAMPLINGS, check_cut, cut_pairs, split_answer
from tests.failover.groups import Group, Groups, node_groups

TOKENS = 40
PROMPT = f"Tell me about the moon. [[tokens={TOKENS}]][[alphabet=mixed]]"


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    with node_groups("llamacpp", nodes=3) as groups:
        yield groups


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_node_is_killed_after_every_token(groups: Groups, sampling: dict[str, Any]):
    answer = split_answer(PROMPT, dialect="llamacpp", **sampling)

    def cut(group: Group, token: int) -> None:
        group.nodes[0].set_fault(kind="sigkill", at_token=token)
        reply = group.ask(PROMPT, **sampling)
        check_cut(group, reply, answer, cuts=[token])

    groups.sweep(range(TOKENS + 1), cut)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_second_node_is_killed_too(groups: Groups, sampling: dict[str, Any]):
    answer = split_answer(PROMPT, dialect="llamacpp", **sampling)

    def cut(group: Group, tokens: tuple[int, int]) -> None:
        for node, token in zip(group.nodes, tokens, strict=False):
            node.set_fault(kind="sigkill", at_token=token)
        reply = group.ask(PROMPT, **sampling)
        check_cut(group, reply, answer, cuts=tokens)

    groups.sweep(cut_pairs(TOKENS), cut)
