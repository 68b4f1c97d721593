"""Stop strings end the answer at the same place, wherever an engine dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine_simulator.model import Answer
from tests.engine_simulator.vocabulary import TOKENS, incomplete_tail
from tests.failover.cuts import answer_to, whole_tokens
from tests.failover.groups import Group, Groups, node_groups
from tests.failover.log import stored_attempts, stored_log, stored_session

SPOKEN = 30
PROMPT = f"Go on and on. [[tokens={SPOKEN}]][[alphabet=cjk]]"


@pytest.fixture(scope="module", params=["vllm", "llamacpp"])
def groups(request: pytest.FixtureRequest) -> Iterator[Groups]:
    with node_groups(request.param, groups=3) as groups:
        yield groups


def long_stop(answer: Answer) -> str:
    """A stop string that begins with a character of several tokens and goes on over others."""
    ids = answer.spoken_ids
    for begin in range(8, SPOKEN - 8):
        begins_inside = incomplete_tail(TOKENS[ids[begin]]) and whole_tokens(answer, begin) == begin
        if begins_inside:
            end = next(e for e in range(begin + 6, SPOKEN) if whole_tokens(answer, e) == e)
            stop = b"".join(TOKENS[token] for token in ids[begin:end]).decode()
            if answer.text.count(stop) == 1:
                return stop
    raise AssertionError("choose another prompt")


def test_the_answer_ends_before_the_stop_string(groups: Groups):
    answer = answer_to(PROMPT)
    stop = long_stop(answer)
    text = answer.text[: answer.text.index(stop)]
    said, tokens = 0, 0
    while said < len((text + stop).encode()):
        said += len(TOKENS[answer.spoken_ids[tokens]])
        tokens += 1

    def cut(group: Group, token: int) -> None:
        group.nodes[0].set_fault(kind="reset", at_token=token)
        reply = group.ask(PROMPT, stop=["never said", stop])
        assert reply.text == text
        assert (reply.finish_reason, reply.is_done, reply.error) == ("stop", True, None)
        # The tokens of the stop string were produced, and count.
        assert reply.counted == (answer.prompt_tokens, tokens)
        log = stored_log(group.sql, reply.session_id)
        assert (log.text, log.ids) == (text, answer.token_ids[:tokens])
        assert stored_session(group.sql, reply.session_id)["state"] == "completed"
        for node in group.nodes:
            stats = node.stats()
            assert stats["wrong_prefixes"] == 0
            assert all(request["stop"] == [] for request in stats["requests"])
        attempts = stored_attempts(group.sql, reply.session_id)
        # After the stop string nobody reads on, so nothing can break.
        assert len(attempts) == (2 if token < tokens else len(attempts))
        seam = sum(of == 1 for of in log.attempts_of_tokens)
        if len(attempts) == 2:
            assert attempts[1].grade == ("exact" if seam else "")
            assert whole_tokens(answer, seam) == seam <= token

    groups.sweep(range(SPOKEN + 1), cut)
