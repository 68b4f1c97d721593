"""What every cut of an answer has to leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.engine_simulator.model import Answer, expected_answer
from tests.engine_simulator.vocabulary import TOKENS, incomplete_tail
from tests.failover.client import Reply
from tests.failover.groups import Group
from tests.failover.log import Sql, stored_attempts, stored_log, stored_session

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1, "seed": 7},
}

# What the death of a process looks like from its connections: the stream's, and for llama.cpp the
# one over which the ids of long characters are asked for.
DEATHS = {"closed_early", "connection_reset", "refused"}


def answer_to(prompt: str, **parameters: Any) -> Answer:
    """The unbroken answer."""
    return expected_answer([{"role": "user", "content": prompt}], **parameters)


def split_answer(prompt: str, **parameters: Any) -> Answer:
    """The unbroken answer, which has characters of several tokens."""
    answer = answer_to(prompt, **parameters)
    inside = [n for n in range(len(answer.spoken_ids)) if whole_tokens(answer, n) < n]
    assert len(inside) >= 3, "choose a prompt whose answer can be cut inside a character"
    return answer


def whole_tokens(answer: Answer, cut: int) -> int:
    """How many of the first ``cut`` tokens end with a whole character."""
    while cut and incomplete_tail(b"".join(TOKENS[token] for token in answer.spoken_ids[:cut])):
        cut -= 1
    return cut


def cut_pairs(tokens: int) -> list[tuple[int, int]]:
    """Two cuts of one answer: neighbours, and some further apart."""
    neighbours = [(first, first + 1) for first in range(2, tokens, 7)]
    return [*neighbours, (0, 1), (0, tokens), (3, tokens // 2), (tokens // 2, tokens - 1)]


def check_reply(sql: Sql, reply: Reply, answer: Answer) -> None:
    """The client has the unbroken answer, once and in order, and so has the log."""
    assert reply.status == 200, reply.error
    assert reply.text == answer.text
    assert reply.error is None
    assert reply.finish_reason == answer.finish_reason
    assert reply.is_done
    assert reply.counted == (answer.prompt_tokens, answer.completion_tokens)
    assert reply.seqs == sorted(set(reply.seqs))
    assert reply.seqs[-1] == answer.completion_tokens + 1
    log = stored_log(sql, reply.session_id)
    assert log.text == answer.text
    assert log.is_closed
    session = stored_session(sql, reply.session_id)
    assert session["state"] == "completed"
    assert session["finish_reason"] == answer.finish_reason
    assert session["completion_tokens"] == len(log.ids) == answer.completion_tokens
    assert session["prompt_tokens"] == answer.prompt_tokens


def check_cut(group: Group, reply: Reply, answer: Answer, *, cuts: Sequence[int]) -> None:
    """Nodes died after the tokens ``cuts``, and each next one went on from the exact token."""
    for node in group.nodes[: len(cuts)]:
        node.wait_dead()
    check_reply(group.sql, reply, answer)
    log = stored_log(group.sql, reply.session_id)
    assert log.ids == answer.token_ids
    attempts = stored_attempts(group.sql, reply.session_id)
    assert [attempt.node for attempt in attempts] == group.node_names()[: len(cuts) + 1]
    assert attempts[-1].end_reason == "finished"
    assert {attempt.end_reason for attempt in attempts[:-1]} <= DEATHS
    seams = [
        sum(of <= number for of in log.attempts_of_tokens) for number in range(1, len(attempts))
    ]
    for seam, cut, attempt in zip(seams, cuts, attempts[1:], strict=True):
        # A reset takes with it what the gateway had received and not read; never half a character.
        assert seam == whole_tokens(answer, seam) <= cut
        assert attempt.grade == ("exact" if seam else "")
    assert log.attempts_of_tokens == sorted(log.attempts_of_tokens)
    assert stored_session(group.sql, reply.session_id)["failovers"] == len(cuts)
    for node in group.nodes:
        assert not node.is_alive or node.stats()["wrong_prefixes"] == 0
