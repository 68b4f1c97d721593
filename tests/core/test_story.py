"""What happened to a session, from what is stored of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming.core.attribution import NO_INTERRUPTIONS, Blame
from streaming.core.course import Absence
from streaming.core.failures import Cause
from streaming.core.interruptions import NORMAL_ENDS
from streaming.core.outcome import Outcome
from streaming.core.state import SessionState
from streaming.core.story import Facts, Happening, Try, tell
from streaming.core.wording import CAUSES, HAPPENED, lasting, what_happened

BEGAN = datetime(2026, 11, 29, 22, 0, tzinfo=UTC)
PACE = 0.02


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def broken(number: int = 1, **values) -> Try:
    """It began at 0 s and broke off at 9 s, after token 412 at 8.98 s."""
    return Try(
        **{
            "number": number, "kind": "first", "node": "gpu-3", "started_at": at(0),
            "first_token_at": at(1), "last_token_at": at(8.98), "ended_at": at(9),
            "first_seq": 1, "last_seq": 412, "end_reason": "connection_reset",
            "cause": "engine_oom", "detection_ms": 20.0, **values,
        }
    )  # fmt: skip


def onward(number: int = 2, **values) -> Try:
    """It went on at 9.04 s, 40 ms after the failure, and finished."""
    return Try(
        **{
            "number": number, "kind": "failover", "node": "gpu-1", "started_at": at(9.01),
            "first_token_at": at(9.04), "last_token_at": at(15.5), "ended_at": at(15.5),
            "first_seq": 413, "last_seq": 733, "end_reason": "finished", "grade": "exact",
            "recovery_ms": 40.0, **values,
        }
    )  # fmt: skip


def fruitless(number: int, began: float, ended: float, **values) -> Try:
    return Try(
        **{
            "number": number, "kind": "failover", "node": f"gpu-{number}", "started_at": at(began),
            "ended_at": at(ended), "end_reason": "refused", "cause": "engine_crash", **values,
        }
    )  # fmt: skip


def joined(seconds: float, reader: str = "7-1", process: int = 7, seq: int = 0) -> Happening:
    data = {"reader": reader, "process": process}
    return Happening(at=at(seconds), kind="reader_joined", seq=seq, data=data)


def left(seconds: float, how: str, reader: str = "7-1", seq: int = 100) -> Happening:
    data = {"reader": reader, "process": 7, "how": how}
    return Happening(at=at(seconds), kind="reader_left", seq=seq, data=data)


def event(seconds: float, kind: str, seq: int = 412, **data) -> Happening:
    return Happening(at=at(seconds), kind=kind, seq=seq, data=data)


def facts(*tries: Try, happenings=(), **values) -> Facts:
    return Facts(
        **{
            "state": "completed", "finish_reason": "stop", "error_code": "", "cause": "",
            "created_at": at(0), "first_token_at": at(1), "ended_at": at(15.5), "tokens": 733,
            "delivered": 733, "charged": 733, "tries": tries, "happenings": tuple(happenings),
            **values,
        }
    )  # fmt: skip


def unfinished(state: str, *tries: Try, happenings=(), **values) -> Facts:
    return facts(
        *tries, happenings=happenings,
        **{"state": state, "ended_at": None, "finish_reason": "", "tokens": 412, "delivered": 412,
           "charged": None, **values},
    )  # fmt: skip


def ended(state: str, *tries: Try, happenings=(), **values) -> Facts:
    return facts(
        *tries, happenings=happenings,
        **{"state": state, "ended_at": at(60), "finish_reason": "", "tokens": 412,
           "delivered": 400, "charged": 400, **values},
    )  # fmt: skip


CLEAN = Try(
    number=1, kind="first", node="gpu-1", started_at=at(0), first_token_at=at(1), ended_at=at(15.5),
    last_token_at=at(15.5), first_seq=1, last_seq=733, end_reason="finished",
)  # fmt: skip
SUSPENDED_BY_READER = Try(
    number=1, kind="first", node="gpu-1", started_at=at(0), first_token_at=at(1), ended_at=at(9),
    last_token_at=at(8.98), first_seq=1, last_seq=412, end_reason="cancelled",
)  # fmt: skip
DIED = broken(end_reason="gateway_crash", cause="gateway_crash", ended_at=at(14), detection_ms=None)
TAKEN_OVER = event(14, "taken_over", reason="gateway_crash", **{"from": 7, "to": 8})
RESUMED = onward(kind="resumption", started_at=at(14.1), first_token_at=at(14.2), recovery_ms=150.0)
SHUT_DOWN = event(9, "suspended", cause="gateway_shutdown")
GONE = event(9, "suspended", cause="client_gone")
NO_NODE = event(9, "suspended", cause="timeout", error={"code": "no_healthy_node"})
TOLD = [joined(0), left(9.01, "told_error", seq=412), NO_NODE]
BACK = joined(13.9, "8-1", 8, seq=412)


def test_the_sentence_of_a_failover():
    story = tell(facts(broken(), onward(), happenings=[joined(0)]))
    assert story.outcome is Outcome.RECOVERED
    assert story.main.grade == "exact"
    assert story.main.beyond_ms == pytest.approx(60 - 1000 * PACE, abs=1)
    assert not story.main.noticed
    assert story.sentence == (
        "The engine gpu-3 ran out of memory after token 412; the answer continued on gpu-1 after"
        " 40 ms; the reader received all 733 tokens and was charged for 733."
    )


@pytest.mark.parametrize(
    ("told", "outcome", "interruptions"),
    [
        # Nothing interrupted it.
        (facts(CLEAN), None, 0),
        (facts(CLEAN, happenings=[joined(0)]), None, 0),
        (unfinished("streaming", replace(CLEAN, ended_at=None, end_reason="")), None, 0),
        (unfinished("created", tokens=0, delivered=0), None, 0),
        (facts(broken(end_reason="migrated", cause=""), onward(kind="migration")), None, 0),
        (facts(broken(end_reason="rehearsal", cause=""), onward()), None, 0),
        (facts(broken(end_reason="overtaken", cause=""), onward(kind="hedge")), None, 0),
        (ended("stopped", broken(end_reason="cancelled", cause="")), None, 0),
        (ended("failed", tokens=0, delivered=0, error_code="context_length_exceeded"), None, 0),
        (ended("failed", fruitless(1, 0, 1, end_reason="rejected", cause=""), tokens=0,
               delivered=0, error_code="engine_rejected"), None, 0),
        # A hedge that fails by itself has no say.
        (facts(CLEAN, fruitless(2, 3, 4, kind="hedge")), None, 0),
        # Engines: got over, or not yet, or never.
        (facts(broken(), onward()), Outcome.RECOVERED, 1),
        (facts(broken(), fruitless(2, 9, 9.1), onward(3)), Outcome.RECOVERED, 2),
        (facts(broken(end_reason="overtaken", cause="engine_frozen"), onward(kind="hedge")),
         Outcome.RECOVERED, 1),
        (facts(broken(end_reason="an end of later versions", cause=""), onward()),
         Outcome.RECOVERED, 1),
        (unfinished("recovering", broken()), Outcome.SUSPENDED, 1),
        (unfinished("streaming", broken(), onward(ended_at=None, end_reason="")),
         Outcome.RECOVERED, 1),
        (ended("failed", broken(), cause="engine_oom"), Outcome.LOST, 1),
        (ended("failed", broken(), onward(last_seq=500), cause="timeout",
               error_code="answer_timeout"), Outcome.LOST, 2),
        (ended("failed", tokens=0, delivered=0, error_code="no_healthy_node", cause="timeout"),
         Outcome.LOST, 1),
        (ended("stopped", broken()), Outcome.LOST, 1),
        (ended("abandoned", broken()), Outcome.LOST, 1),
        (ended("cancelled", broken()), Outcome.LOST, 1),
        (unfinished("suspended", broken(), happenings=[joined(0), left(8.9, "closed"), GONE]),
         Outcome.SUSPENDED, 1),
        # An error has suspended it: its engines' failures, or nothing else, tell why.
        (unfinished("suspended", broken(), happenings=TOLD, error_code="no_healthy_node"),
         Outcome.SUSPENDED, 1),
        (unfinished("suspended", SUSPENDED_BY_READER, happenings=TOLD), Outcome.SUSPENDED, 1),
        (unfinished("suspended", SUSPENDED_BY_READER, tokens=0, happenings=[
            NO_NODE, event(12, "suspended", cause="timeout", error={"code": "no_healthy_node"})]),
         Outcome.SUSPENDED, 1),
        (unfinished("suspended", happenings=TOLD, tokens=0), Outcome.SUSPENDED, 1),
        (facts(SUSPENDED_BY_READER, RESUMED, happenings=[*TOLD, BACK]), Outcome.RECOVERED, 1),
        (ended("abandoned", SUSPENDED_BY_READER, happenings=TOLD, error_code="no_healthy_node"),
         Outcome.LOST, 1),
        (facts(SUSPENDED_BY_READER, RESUMED, happenings=[
            *TOLD[:2], event(9, "suspended", cause="gateway_crash", error={"code": "internal_error"}),
            BACK]), Outcome.RECOVERED, 1),
        # Whole before its engine or its gateway ended.
        (facts(broken(last_seq=733)), Outcome.RECOVERED, 1),
        # Gateways.
        (facts(DIED, RESUMED, happenings=[joined(0), TAKEN_OVER, joined(14.05, "8-1", 8)]),
         Outcome.RECOVERED, 1),
        (facts(DIED, RESUMED), Outcome.RECOVERED, 1),
        (facts(replace(DIED, cause=""), RESUMED, happenings=[TAKEN_OVER]), Outcome.RECOVERED, 1),
        (unfinished("suspended", DIED, happenings=[
            TAKEN_OVER, event(14, "suspended", cause="gateway_crash")]), Outcome.SUSPENDED, 1),
        (ended("abandoned", DIED, happenings=[
            event(14, "suspended", cause="gateway_crash"),
            event(60, "abandoned", seq=413, cause="abandoned")]), Outcome.LOST, 1),
        (ended("cancelled", DIED, happenings=[
            TAKEN_OVER, event(14, "cancelled", cause="gateway_crash")]), Outcome.LOST, 1),
        (unfinished("suspended", SUSPENDED_BY_READER, happenings=[
            joined(0), left(8.99, "sent_away"), SHUT_DOWN]), Outcome.SUSPENDED, 1),
        (facts(SUSPENDED_BY_READER, RESUMED, happenings=[
            joined(0), left(8.99, "sent_away"), SHUT_DOWN, joined(9.5, "8-1", 8),
            event(9.5, "taken_over", reason="resumed", **{"from": 7, "to": 8})]),
         Outcome.RECOVERED, 1),
        (facts(CLEAN, happenings=[joined(0), event(2, "taken_over", reason="continued_by_staff")]),
         None, 0),
        # Its gateway died, it was finished for nobody.
        (facts(DIED, RESUMED, happenings=[joined(0), TAKEN_OVER], delivered=412),
         Outcome.LOST, 1),
        # Readers.
        (facts(CLEAN, happenings=[joined(0), left(5, "closed")], delivered=100), Outcome.LEFT, 0),
        (facts(CLEAN, happenings=[joined(0), left(5, "ended")], delivered=100), Outcome.LEFT, 0),
        (ended("cancelled", SUSPENDED_BY_READER, happenings=[joined(0), left(5, "reset")]),
         Outcome.LEFT, 0),
        (unfinished("suspended", SUSPENDED_BY_READER, happenings=[
            joined(0), left(5, "closed"), GONE]), Outcome.LEFT, 0),
        (ended("abandoned", SUSPENDED_BY_READER, happenings=[joined(0), left(5, "closed"), GONE]),
         Outcome.LEFT, 0),
        (ended("abandoned", SUSPENDED_BY_READER, happenings=[GONE]), Outcome.LEFT, 0),
        (ended("abandoned", SUSPENDED_BY_READER, happenings=[
            joined(0), left(5, "timed_out"), GONE]), Outcome.LOST, 1),
        (ended("cancelled", SUSPENDED_BY_READER, happenings=[joined(0), left(5, "stuck")]),
         Outcome.LOST, 1),
        (unfinished("suspended", SUSPENDED_BY_READER, happenings=[
            joined(0), left(5, "timed_out"), GONE]), Outcome.SUSPENDED, 1),
        # It is in a process that died, which nobody could note.
        (ended("abandoned", SUSPENDED_BY_READER, happenings=[joined(0), GONE]), Outcome.LOST, 1),
        (facts(CLEAN, happenings=[joined(0), left(5, "reset"), joined(7, "7-2", seq=100)]),
         Outcome.RECOVERED, 1),
        (facts(CLEAN, happenings=[joined(0), left(5, "timed_out")], delivered=733),
         Outcome.RECOVERED, 1),
        (facts(CLEAN, happenings=[joined(0), left(5, "timed_out")], delivered=700),
         Outcome.LOST, 1),
        # Back after the end: it has read the rest.
        (facts(CLEAN, happenings=[joined(0), left(5, "closed"), joined(16, "7-2", seq=100)]),
         None, 0),
        # One of two is enough.
        (facts(CLEAN, happenings=[joined(0), joined(1, "7-2"), left(5, "timed_out")]), None, 0),
        # Sent to another gateway, and there at once, or not.
        (facts(CLEAN, happenings=[joined(0), left(5, "sent_away"), joined(6, "8-1", 8)]), None, 0),
        (facts(CLEAN, happenings=[joined(0), left(2, "sent_away"), joined(15, "8-1", 8)]),
         Outcome.RECOVERED, 1),
        (ended("abandoned", SUSPENDED_BY_READER, happenings=[joined(0), left(5, "sent_away"),
               GONE]), Outcome.LOST, 1),
        # The worst wins.
        (facts(broken(), onward(), happenings=[joined(0), left(12, "closed")], delivered=500),
         Outcome.RECOVERED, 1),
        (unfinished("suspended", broken(), onward(end_reason="cancelled"), happenings=[
            joined(0), left(12, "timed_out"), event(13, "suspended", cause="client_gone")]),
         Outcome.SUSPENDED, 2),
    ],
)  # fmt: skip
def test_outcomes(told, outcome, interruptions):
    story = tell(told)
    assert story.outcome is outcome, story
    assert len(story.interruptions) == interruptions, story.interruptions


@pytest.mark.parametrize("state", SessionState)
def test_an_engine_that_was_never_got_over(state):
    over = {
        SessionState.COMPLETED: Outcome.RECOVERED,
        SessionState.CREATED: Outcome.SUSPENDED,
        SessionState.STREAMING: Outcome.SUSPENDED,
        SessionState.RECOVERING: Outcome.SUSPENDED,
        SessionState.SUSPENDED: Outcome.SUSPENDED,
    }
    make = ended if state.is_end else unfinished
    assert tell(make(state.value, broken())).outcome is over.get(state, Outcome.LOST)


@pytest.mark.parametrize("blame", Blame)
def test_every_cause_has_words(blame):
    assert blame.value in CAUSES
    sentence = tell(facts(broken(cause=blame.value), onward())).sentence
    assert " after token 412; " in sentence
    assert "_" not in sentence
    assert "{" not in sentence


@pytest.mark.parametrize("cause", [c for c in Cause if c not in NO_INTERRUPTIONS])
def test_what_a_stream_saw_has_words_until_it_is_attributed(cause):
    assert cause.value in HAPPENED
    assert cause.value not in NORMAL_ENDS
    story = tell(facts(broken(end_reason=cause.value, cause=""), onward()))
    assert story.main.cause == cause.value


def test_a_cause_of_later_versions_is_told_by_its_name():
    (one,) = tell(facts(broken(cause="engine_{bored}"), onward())).interruptions
    assert what_happened(one) == "the engine gpu-3 failed (engine (bored))"


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (facts(CLEAN),
         "The answer came without interruption; the reader received all 733 tokens and was charged"
         " for 733."),
        (unfinished("recovering", broken()),
         "The engine gpu-3 ran out of memory after token 412; the answer has not gone on yet; the"
         " reader has received 412 of the 412 tokens so far."),
        (ended("failed", broken(cause="engine_frozen")),
         "The engine gpu-3 stopped answering after token 412; the answer could not be continued;"
         " the reader received 400 of 412 tokens and was charged for 400."),
        (ended("failed", fruitless(1, 0, 1, kind="first"), tokens=0, delivered=0, charged=0),
         "The engine gpu-1 broke down before the first token; the answer could not be continued;"
         " the reader received nothing and was charged for nothing."),
        (facts(DIED, RESUMED, happenings=[joined(0), TAKEN_OVER, joined(14.05, "8-1", 8)],
               charged=None),
         "The gateway that passed the answer on broke down after token 412; the answer continued on"
         " gpu-1 after 5.2 s; the reader received all 733 tokens and has not been charged yet."),
        (facts(SUSPENDED_BY_READER, RESUMED, happenings=[*TOLD, BACK]),
         "The engine gpu-1 took too long after token 412; the answer continued on gpu-1 after 5.2 s;"
         " the reader received all 733 tokens and was charged for 733."),
        (ended("abandoned", broken(), happenings=TOLD, error_code="failover_exhausted"),
         "The engine gpu-3 ran out of memory after token 412; the answer was kept for its reader, and"
         " not finished in time; the reader received 400 of 412 tokens and was charged for 400."),
        (facts(CLEAN, happenings=[joined(0), left(5, "closed")], delivered=100, charged=100),
         "The reader closed the connection after token 100 and did not come back; the reader"
         " received 100 of 733 tokens and was charged for 100."),
        (facts(CLEAN, happenings=[joined(0), left(5, "timed_out"), joined(12, "7-2", seq=100)]),
         "The reader’s connection fell silent after token 100; the reader came back after 7.0 s; the"
         " reader received all 733 tokens and was charged for 733."),
        (facts(broken(), fruitless(2, 9, 9.01), onward(3)),
         "The engine gpu-3 ran out of memory after token 412; the answer continued on gpu-1 after"
         " 40 ms; the reader received all 733 tokens and was charged for 733. It was interrupted"
         " once more, too short to be noticed."),
        (ended("stopped", SUSPENDED_BY_READER, tokens=1, delivered=1, charged=1),
         "The answer was stopped on request after token 1; the reader received the one token that"
         " there was and was charged for 1."),
        (ended("failed", tokens=0, delivered=0, charged=None, error_code="context_length_exceeded"),
         "The request was refused before an answer began (context length exceeded); the reader"
         " received nothing and has not been charged yet."),
        (unfinished("suspended", SUSPENDED_BY_READER, happenings=[
            joined(0), left(8.99, "sent_away"), SHUT_DOWN], tokens=1234, delivered=1200),
         "The gateway that passed the answer on was shut down after token 412; the answer waits and"
         " goes on when its reader comes back; the reader has received 1,200 of the 1,234 tokens so"
         " far."),
    ],
)  # fmt: skip
def test_sentences(told, sentence):
    assert tell(told).sentence == sentence


def test_the_gap_is_what_somebody_was_there_to_notice():
    slow = onward(first_token_at=at(19), recovery_ms=10_000.0, ended_at=at(25))
    there = tell(facts(broken(), slow, happenings=[joined(0)], ended_at=at(25)))
    assert there.main.beyond_ms == pytest.approx(10_000, abs=50)
    assert there.main.noticed
    away = [joined(0), left(8.9, "closed"), joined(18.5, "7-2", seq=400)]
    back = tell(facts(broken(), slow, happenings=away, ended_at=at(25)))
    of_engine = next(one for one in back.interruptions if one.side == "engine")
    assert of_engine.beyond_ms == pytest.approx(500, abs=30)
    nobody = tell(
        facts(broken(), slow, happenings=[joined(0), left(8.9, "closed")], ended_at=at(25))
    )
    assert nobody.main.beyond_ms is None
    assert not nobody.main.noticed
    assert "continued on gpu-1 while nobody was reading" in nobody.sentence


def test_a_chain_of_failures_is_one_gap_that_began_with_the_first():
    tries = [
        broken(),
        fruitless(2, 9.0, 9.5, detection_ms=500.0),
        onward(3, first_token_at=at(10), recovery_ms=1000.0),
    ]
    first, second = tell(facts(*tries)).interruptions
    assert (first.until, second.until) == (at(10), at(10))
    assert first.beyond_ms == pytest.approx(1000, abs=50)
    assert second.beyond_ms < first.beyond_ms
    assert tell(facts(*tries)).main == first


def test_the_end_of_a_gateway_is_dated_by_its_last_token():
    (one,) = tell(facts(DIED, RESUMED, happenings=[joined(0), TAKEN_OVER])).interruptions
    assert (one.at, one.until, one.gateway, one.side) == (at(8.98), at(14.2), "7", "gateway")
    assert one.beyond_ms == pytest.approx(5220 - 1000 * PACE, abs=10)
    assert one.noticed


def test_absences():
    course = [
        joined(0), left(3, "reset", seq=90), joined(4, "7-2", seq=90), joined(5, "8-1", 8, 120),
        left(6, "closed", "7-2"), left(7, "timed_out", "8-1", seq=200),
    ]  # fmt: skip
    assert tell(facts(CLEAN, happenings=course)).absences == (
        Absence(left_at=at(3), back_at=at(4), how="reset", seq=90),
        Absence(left_at=at(7), back_at=None, how="timed_out", seq=200),
    )


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(0, "0 ms"), (38.4, "38 ms"), (999.4, "999 ms"), (999.6, "1.0 s"), (59_940, "59.9 s"),
     (59_960, "1 min"), (200_000, "3 min 20 s"), (7_500_000, "2 h 5 min"), (-5, "0 ms")],
)  # fmt: skip
def test_durations(milliseconds, words):
    assert lasting(milliseconds) == words


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

moments = st.floats(-5, 100).map(at)
maybe = st.none() | st.integers(0, 900)
words = st.sampled_from(
    ["", "finished", "cancelled", "overtaken", "stalled", "gateway_crash", "runner_lost", "new"]
    + [blame.value for blame in Blame]
)
tries = st.builds(
    Try, number=st.integers(1, 6), kind=st.sampled_from(["first", "failover", "hedge", "?"]),
    node=st.sampled_from(["", "gpu-1", "{gpu}"]), started_at=moments,
    first_token_at=st.none() | moments, last_token_at=st.none() | moments,
    ended_at=st.none() | moments, first_seq=maybe, last_seq=maybe, end_reason=words, cause=words,
    grade=st.sampled_from(["", "exact", "text", "new"]),
    detection_ms=st.none() | st.floats(-10, 1e6), recovery_ms=st.none() | st.floats(-10, 1e6),
    evidence=st.sampled_from([{}, {"gateway": 3}, {"gateway": None}]),
)  # fmt: skip
happenings = st.builds(
    Happening, at=moments, seq=st.integers(0, 900),
    kind=st.sampled_from(["reader_joined", "reader_left", "taken_over", "suspended", "moved", "?"]),
    data=st.dictionaries(
        st.sampled_from(["how", "reader", "process", "from", "reason", "cause"]),
        st.sampled_from(["closed", "timed_out", "sent_away", "gateway_crash", "resumed",
                         "client_gone", "gateway_shutdown", 7, 8, None, ["?"]]),
    ),
)  # fmt: skip
courses = st.builds(
    Facts, state=st.sampled_from([state.value for state in SessionState] + ["?"]),
    finish_reason=st.sampled_from(["", "stop"]),
    error_code=st.sampled_from(["", "seam_refused", "engine_rejected"]), cause=words,
    created_at=moments, first_token_at=st.none() | moments, ended_at=st.none() | moments,
    tokens=st.integers(0, 900), delivered=st.integers(0, 900),
    tries=st.lists(tries, max_size=4).map(tuple),
    happenings=st.lists(happenings, max_size=7).map(tuple), charged=maybe,
)  # fmt: skip


@unhurried
@given(courses)
def test_whatever_is_stored_can_be_told(told):
    story = tell(told)
    assert story.sentence.endswith(".")
    assert story == tell(told)
    for one in story.interruptions:
        assert one.side in ("engine", "gateway", "reader")
        assert one.until is None or one.until >= one.at
        assert one.beyond_ms is None or (one.until is not None and one.beyond_ms >= 0)
    if story.interruptions:
        assert story.main in story.interruptions
        assert story.outcome in (Outcome.RECOVERED, Outcome.SUSPENDED, Outcome.LOST)
    if any(one.until is None for one in story.interruptions):
        assert story.outcome is not Outcome.LEFT
    for one, other in zip(story.absences, story.absences[1:], strict=False):
        assert one.back_at is not None
        assert one.back_at <= other.left_at


@unhurried
@given(courses)
def test_the_order_in_which_it_was_noted_does_not_matter(told):
    turned = replace(told, tries=tuple(reversed(told.tries)))
    if len({one.number for one in told.tries}) == len(told.tries):
        assert tell(turned) == tell(told)
