"""Each figure from records whose answer is known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.chaos import gauges
from bench.chaos.figures import compute, overlapping
from bench.chaos.findings import findings, percent
from bench.chaos.gauges import Reading, counted, reading_of
from tests.bench.chaos.made import (
    T0,
    attempt,
    broken,
    fault,
    gap,
    joined,
    run,
    session,
    stream,
)


def figures(streams=(), sessions=(), faults=(), evidence=None, **of_run: Any) -> dict[str, Any]:
    by_id = {one.session: one for one in sessions}
    return compute(run(**of_run), streams, faults, by_id, evidence or {})


def goals(told) -> dict[str, bool | None]:
    return {line.what: line.met for line in findings(told) if line.goal}


def test_a_run_without_anything():
    told = figures()
    assert told["streams"] == {}
    assert told["interruptions"] == {}
    assert told["failovers"]["noticed"] == {}
    assert findings(told)


def test_nothing_failed():
    told = figures([stream(n) for n in range(10)], [session(n) for n in range(10)])
    assert told["interruptions"]["plain_engines"]["hits"] == 0
    assert told["interruptions"]["plain_engines"]["trials"] == 10
    assert told["interruptions"]["plain_engines"]["upper"] == pytest.approx(1 - 0.05**0.1)
    assert told["noticed"]["streams"] == 0
    assert told["tokens"]["modes"]["unbroken"]["delivery_ratio"] == 1.0
    assert told["tokens"]["modes"]["unbroken"]["per_delivered"] == 1.0
    assert all(goals(told).values())


def test_interruptions_by_reader_and_by_what_was_struck():
    streams = [
        stream(0, after=1.0, whole=False, fault="an error"),
        stream(1, after=1.0),
        stream(2, after=20.0, whole=False, fault="connection lost"),  # a gateway dies in it
        stream(3, after=20.0, reader="resuming"),
        stream(4, after=20.0, reader="acking", whole=False, fault="wrong bytes"),
        stream(5, after=1.0, whole=False, left=True),
        stream(6, after=1.0, mode="unprotected", session="", whole=False, fault="connection lost"),
        stream(7, after=1.0, cuts=1, whole=False, fault="cut"),
    ]
    told = figures(streams, faults=[fault("gateway_kill", "gateway-0", 22.0, 1.0)])
    groups = {
        name: (group["hits"], group["trials"]) for name, group in told["interruptions"].items()
    }
    assert groups == {
        "plain_engines": (1, 2), "plain_others": (2, 2), "returning": (1, 2), "unprotected": (1, 1),
    }  # fmt: skip
    assert told["left"] == 1
    assert told["interruptions"]["returning"]["examples"] == {"wrong bytes": 1}
    assert goals(told)["interrupted: readers that come back"] is False


def test_a_failover_that_nobody_noticed():
    # Killed at 3.0; noticed at 3.02; the next token at 3.06, durable at 3.065.
    told = figures(
        [stream(0)],
        [session(0, broken(3.02), joined(3.06))],
        [fault("node_kill", "a", 3.0, 2.0)],
    )
    assert told["failovers"]["kinds"] == {"failover": 1}
    assert told["failovers"]["grades"] == {"exact": 1}
    assert told["failovers"]["noticed"]["failover"]["hits"] == 0
    assert told["detection_ms"]["node_kill"]["p50"] == pytest.approx(20, abs=0.01)
    assert told["recovery_ms"]["node_kill"]["mean"] == pytest.approx(45, abs=0.01)
    assert told["recovery_crashes_ms"]["mean"] == pytest.approx(45, abs=0.01)
    # 40 ms before it was noticed came the last data: 80 ms, of which 50 are the pace.
    assert told["seam_ms"]["node_kill"]["p50"] == pytest.approx(30, abs=0.01)


def test_the_readers_own_silence_counts_where_it_has_one():
    told = figures(
        [stream(0, gaps=[gap(3.07, 0.09)])],
        [session(0, broken(3.02), joined(3.06))],
        [fault("node_kill", "a", 3.0, 2.0)],
    )
    assert told["seam_ms"]["node_kill"]["p50"] == pytest.approx(90)
    assert told["noticed"]["streams"] == 0


@pytest.mark.parametrize(("beyond", "noticed"), [(0.301, 1), (0.299, 0)])
def test_noticed_is_more_than_300_ms_beyond_the_pace(beyond, noticed):
    told = figures(
        [stream(0, gaps=[gap(3.4, beyond)])],
        [session(0, broken(3.02), joined(3.39))],
        [fault("node_kill", "a", 3.0, 2.0)],
    )
    assert told["failovers"]["noticed"]["failover"]["hits"] == noticed
    assert told["noticed"]["silences"] == ({"failover": 1} if noticed else {})
    assert goals(told)["failovers that no reader noticed"] is not bool(noticed)


@pytest.mark.parametrize(
    ("other", "behind"),
    [
        (fault("postgres_restart", "postgres", 3.1, 0.2), "postgres"),
        (fault("node_slow", "b", 2.0, 4.0), "onto"),
        (fault("node_slow", "c", 2.0, 4.0), "nothing"),
        (fault("gateway_kill", "gateway-1", 3.1, 0.2), "gateway"),
    ],
)
def test_what_lay_behind_a_noticed_failover(other, behind):
    told = figures(
        [stream(0, gaps=[gap(3.4, 0.4)])],
        [session(0, broken(3.02), joined(3.39))],
        [fault("node_kill", "a", 3.0, 2.0), other],
    )
    assert told["failovers"]["noticed"]["failover"]["hits"] == 1
    assert told["failovers"]["behind_noticed"] == {behind: 1}


def test_a_failover_whose_reader_went_away_for_good_is_left_out():
    one = session(0, broken(3.02), joined(3.06, first_token=None, durable=None))
    one.state = "suspended"
    faults = [fault("node_kill", "a", 3.0, 2.0)]
    told = figures([stream(0, whole=False, left=True)], [one], faults)
    assert told["failovers"]["noticed"] == {}
    assert told["failovers"]["away"] == 1
    told = figures([stream(0, whole=False, fault="no end")], [one], faults)
    assert told["failovers"]["noticed"]["failover"]["hits"] == 1


def test_a_noticed_failover_while_untouched_streams_were_silent_too():
    told = figures(
        [stream(0, gaps=[gap(3.4, 0.4)]), stream(1, gaps=[gap(3.5, 0.4)])],
        [session(0, broken(3.02), joined(3.39)), session(1, attempt(1, node="b"))],
        [fault("node_kill", "a", 3.0, 2.0)],
    )
    assert told["noticed"]["silences"] == {"failover": 1, "other": 1}
    assert told["failovers"]["noticed_with_others"] == 1


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)).map(lambda t: (t[0], sum(t))))


@given(spans, spans)
def test_overlapping_is_what_it_says(some, others):
    expected = sum(
        any(
            begin <= end_of_other and begin_of_other <= end
            for begin_of_other, end_of_other in others
        )
        for begin, end in some
    )
    assert overlapping(some, others) == expected


def test_a_silence_elsewhere_is_not_the_failovers():
    told = figures(
        [stream(0, gaps=[gap(5.0, 0.5)])],
        [session(0, broken(3.02), joined(3.06))],
        [fault("node_kill", "a", 3.0, 1.0)],
    )
    assert told["noticed"]["silences"] == {"other": 1}
    assert told["failovers"]["noticed"]["failover"]["hits"] == 0


def test_failover_while_the_readers_own_connection_was_cut():
    told = figures(
        [stream(0, reader="resuming", cuts=1, gaps=[gap(3.6, 0.6)])],
        [session(0, broken(3.02), joined(3.06))],
        [fault("node_kill", "a", 3.0, 2.0), fault("reader_cut", "0", 3.01)],
    )
    assert told["noticed"]["silences"] == {"cut": 1}
    assert told["failovers"]["away"] == 1
    assert told["failovers"]["noticed"] == {}


def test_a_failover_that_found_no_other_node():
    told = figures(
        [stream(0, whole=False, fault="no_node", tokens=50)],
        [session(0, broken(3.02), state="failed", log=50, billed=50)],
        [fault("node_kill", "a", 3.0, 2.0)],
    )
    assert told["failovers"]["noticed"]["failover"]["hits"] == 1
    assert told["failovers"]["grades"] == {"lost": 1}


def test_attempts_without_a_token_between_them_are_one_failover():
    refused = attempt(
        2, after=3.03, node="c", kind="failover", first_token=None, first_seq=0, ended=T0 + 3.04,
        end_reason="refused",
    )  # fmt: skip
    told = figures(
        [stream(0)],
        [session(0, broken(3.02), refused, joined(3.06, number=3))],
        [fault("node_kill", "a", 3.0, 2.0)],
    )
    assert told["failovers"]["kinds"] == {"failover": 1}
    assert told["recovery_ms"]["node_kill"]["mean"] == pytest.approx(45, abs=0.01)


def test_a_failover_before_the_first_token_is_a_delay():
    told = figures(
        [stream(0, first=T0 + 3.1)],
        [session(0, broken(3.0, first_token=None, first_seq=0), joined(3.06, first_seq=1))],
        [fault("node_kill", "a", 2.99, 2.0)],
    )
    assert told["failovers"]["noticed"] == {}
    assert told["failovers"]["before_first_ms"]["p50"] == pytest.approx(100, abs=0.01)


def test_a_failover_that_was_over_before_the_reader_saw_anything():
    told = figures(
        [stream(0, first=T0 + 9.0)],
        [session(0, broken(3.02), joined(3.06, durable=T0 + 8.9))],
        [fault("node_kill", "a", 3.0, 2.0), fault("postgres_restart", "postgres", 2.0, 6.5)],
    )
    assert told["failovers"]["noticed"] == {}
    assert told["failovers"]["before_first_ms"]["count"] == 1


def test_a_seam_while_nothing_becomes_durable_is_no_recovery_from_a_crash():
    told = figures(
        [stream(0, gaps=[gap(8.95, 5.8)])],
        [session(0, broken(3.02), joined(3.06, durable=T0 + 8.9))],
        [fault("node_kill", "a", 3.0, 2.0), fault("postgres_restart", "postgres", 4.0, 3.0)],
    )
    assert told["recovery_crashes_ms"]["count"] == 0
    assert told["recovery_ms"]["postgres_restart"]["mean"] == pytest.approx(5880, abs=0.01)
    assert told["failovers"]["noticed"]["failover"]["hits"] == 1


def test_a_hedge_is_detected_when_it_starts():
    silent = attempt(1, ended=T0 + 3.5, end_reason="overtaken", detection_ms=None)
    hedge = joined(3.5, kind="hedge", started=T0 + 3.4)
    told = figures(
        [stream(0)], [session(0, silent, hedge)], [fault("node_stop", "a", 3.0, 4.0)]
    )  # fmt: skip
    assert told["failovers"]["kinds"] == {"hedge": 1}
    assert told["detection_ms"]["node_stop"]["p50"] == pytest.approx(400, abs=0.01)
    assert told["recovery_ms"]["node_stop"]["mean"] == pytest.approx(105, abs=0.01)
    assert told["recovery_crashes_ms"]["count"] == 0


def test_a_hedge_that_lost_is_no_seam():
    lost = attempt(
        2, after=3.0, kind="hedge", first_token=None, first_seq=0, end_reason="cancelled"
    )
    assert figures([stream(0)], [session(0, attempt(1), lost)])["failovers"]["kinds"] == {}


def test_a_takeover_is_counted_from_the_death_of_the_gateway():
    dead = broken(3.1, end_reason="gateway_crash", cause="gateway_crash", first_token=None,
                  detection_ms=None)  # fmt: skip
    told = figures(
        [stream(0, reader="resuming")],
        [session(0, dead, joined(3.2, kind="resumption"))],
        [fault("gateway_kill", "gateway-1", 3.0, 4.0)],
    )
    assert told["failovers"]["kinds"] == {"takeover": 1}
    assert told["failovers"]["noticed"]["takeover"]["trials"] == 1
    assert told["detection_ms"]["gateway_kill"]["p50"] == pytest.approx(100, abs=0.01)


@pytest.mark.parametrize(
    ("kind", "target", "origin"),
    [
        ("gateway_kill", "gateway-0", "gateway"),
        ("postgres_restart", "postgres", "postgres"),
        ("redis_restart", "redis", "redis"),
        ("node_slow", "a", "slow"),
        ("reader_cut", "1", "other"),  # another's
    ],
)
def test_what_a_silence_comes_from(kind, target, origin):
    told = figures(
        [stream(0, gaps=[gap(3.5, 0.45)])], [session(0)], [fault(kind, target, 3.2, 0.2)]
    )
    assert told["noticed"]["silences"] == {origin: 1}


def test_the_fault_of_another_node_is_not_what_a_silence_comes_from():
    told = figures(
        [stream(0, gaps=[gap(3.5, 0.45)])], [session(0)], [fault("node_slow", "b", 3.2, 1)]
    )
    assert told["noticed"]["silences"] == {"other": 1}


def test_billing_against_what_readers_got():
    streams = [
        stream(0, reader="acking"),
        stream(1, reader="acking"),
        stream(2, tokens=40, whole=False),
        stream(3, tokens=40, whole=False),
        stream(4, tokens=40, whole=False, left=True),
        stream(5),
        stream(6),
    ]
    sessions = [
        session(0),
        session(1, billed=99),
        session(2, billed=37),
        session(3, billed=42, taken=41, sent=41),
        session(4, billed=43, taken=43, sent=43),
        session(5, billed=None, lines=0, entries=0),
    ]
    tokens = figures(streams, sessions)["tokens"]
    told = {
        name: (of["streams"], of["equal"], of["most_above"], of["most_below"])
        for name, of in tokens["billing"].items()
    }
    assert told == {
        "acking": (2, 1, 0, 1), "resuming": (0, 0, 0, 0), "plain": (2, 0, 2, 3), "left": (1, 0, 3, 0),
    }  # fmt: skip
    assert tokens["billing"]["plain"]["differences"] == {-3: 1, 2: 1}
    assert (tokens["unsettled"], tokens["missing"], tokens["beyond_evidence"]) == (1, 1, 1)
    met = goals(figures(streams, sessions))
    assert met["billed exactly what they got: acking readers"] is False
    assert met["billed exactly what they got: plain clients"] is False
    assert met["sessions billed beyond the evidence of delivery"] is False


def test_a_settlement_without_its_ledger_line():
    assert figures([stream(0)], [session(0, entries=0)])["tokens"]["without_line"] == 1


def test_delivery_ratio_and_cost():
    # 98 + 100 tokens of 103 + 100 read from engines, and 7 of a session that nobody knows.
    told = figures(
        [
            stream(0, tokens=98, whole=False),
            stream(1),
            stream(2, tokens=10, left=True, whole=False),
        ],
        [session(0, discarded=3), session(1), session(2, log=60)],
        evidence={"gateway": {"strangers": {"sessions": 1, "generated": 7}}},
    )["tokens"]["modes"]["unbroken"]
    assert told["delivery_ratio"] == pytest.approx(198 / 210)
    assert told["per_delivered"] == pytest.approx(270 / 208)
    assert told["whole_ratio"] == pytest.approx(100 / 270)


def test_what_engines_made_for_those_who_asked_them_directly():
    direct = {"session": "", "transport": "none"}
    told = figures(
        [
            stream(0),
            stream(1, mode="unprotected", session="", tokens=60, whole=False),
            stream(2, mode="unstreamed", **direct),
            stream(3, mode="unstreamed", **direct, tokens=0, whole=False, fault="connection lost"),
        ],
        [session(0)],
        evidence={"engines": {"a": {"generated": 200.0}, "b": {"generated": 110.0}}},
    )["tokens"]["modes"]
    assert told["unprotected"]["generated"] == 60
    assert told["unstreamed"]["generated"] == 150  # 310 - 100 - 60
    assert told["unstreamed"]["per_delivered"] == pytest.approx(1.5)


def test_reclaim_counts_while_the_node_can_be_asked():
    gone = {"reclaim": "verified", "end_reason": "cancelled"}
    frozen = attempt(1, node="a", ended=T0 + 3.0, reclaimed=T0 + 9.0, **gone)  # 4 s of it away
    killed = attempt(1, node="b", ended=T0 + 3.0, reclaimed=T0 + 9.0, **gone)
    usual = attempt(1, node="c", ended=T0 + 3.0, reclaimed=T0 + 3.2, **gone)
    told = figures(
        [stream(n) for n in range(4)],
        [
            session(0, frozen), session(1, killed), session(2, usual),
            session(3, attempt(1, node="c", reclaim="overdue")),
        ],
        [fault("node_stop", "a", 4.0, 4.0), fault("node_kill", "b", 2.9, 1.0)],
    )["reclaim"]  # fmt: skip
    assert told["outcomes"] == {"verified": 3, "overdue": 1}
    assert told["of_dead_nodes"] == 1
    assert told["ms"]["count"] == 2
    assert told["ms"]["max"] == pytest.approx(2000, abs=0.01)
    assert told["ms"]["p50"] == pytest.approx(200, abs=0.01)


def test_times_of_modes():
    told = figures([stream(n, after=1.0 + n) for n in range(5)])["times"]["unbroken"]
    assert told["qps"] == pytest.approx(1.0)
    assert told["first_ms"]["p99"] == pytest.approx(100, abs=0.01)
    assert told["total_ms"]["p99"] == pytest.approx(5050, abs=0.01)
    assert told["token_ms"]["p99"] == pytest.approx(50, abs=0.01)


def test_timeline_counts_streams_in_flight():
    told = figures([stream(0), stream(1, after=1.0), stream(2, after=30.0)])["timeline"]
    assert max(told["in_flight"]) == 2
    assert told["in_flight"][-1] >= 0
    assert told["seconds"] == pytest.approx(35.05)


# --- engines -------------------------------------------------------------------------------------

VLLM = b"""# HELP vllm:generation_tokens_total
vllm:num_requests_running{engine="0"} 4.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:generation_tokens_total{engine="0"} 120.0
vllm:prompt_tokens_total{engine="0"} 30.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1.0
"""


def test_reading_of_vllm_and_its_gpus():
    gpu = b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 80\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 40\n'
    assert reading_of("a", 1.0, VLLM, gpu) == Reading(
        engine="a", at=1.0, generated=120, prompt=30, running=4, waiting=1, kv_usage=0.25,
        kv_tokens=1600, gpu=pytest.approx(0.6),
    )  # fmt: skip


def test_an_engine_that_tells_little():
    told = reading_of(
        "b", 1.0, b"llamacpp:tokens_predicted_total 7\nllamacpp:requests_processing 1\n"
    )
    assert told == Reading(engine="b", at=1.0, generated=7, running=1)
    summed = gauges.summary([told])["b"]
    assert summed["gpu"] is None
    assert summed["kv_tokens_per_request"] is None


def test_counters_that_begin_anew():
    assert counted([10, 15, None, 3, 9]) == 14
    assert counted([None]) is None


def test_kv_of_a_request_is_taken_while_requests_run():
    busy = Reading(engine="a", at=1.0, running=4, kv_usage=0.25, kv_tokens=1600)
    idle = Reading(engine="a", at=2.0, running=0, kv_usage=0.0, kv_tokens=1600)
    assert gauges.summary([idle, busy])["a"]["kv_tokens_per_request"] == 100


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "not told"), (0.0, "0 %"), (1.0, "100 %"), (0.5, "50.0 %"), (0.9994, "99.940 %"),
        (9.98e-6, "0.00100 %"), (0.999999, "99.99990 %"),
    ],
)  # fmt: skip
def test_percentages_keep_what_matters(share, text):
    assert percent(share) == text
