"""Counting on plain numbers, and carrying them over."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from prometheus_client import CollectorRegistry

from streaming import metrics
from streaming.core.state import SessionState
from streaming.metrics import catalogue, plain
from streaming.metrics.plain import Level, Spread, Total, fold
from streaming.metrics.sessions import LATE_SECONDS, SessionCount


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """Metrics of the test's own."""
    registry = CollectorRegistry()
    monkeypatch.setattr(plain, "REGISTRY", registry)
    monkeypatch.setattr(plain, "_all", [])
    return registry


def test_what_is_counted_is_carried_over_once(registry: CollectorRegistry) -> None:
    total = Total("fruit_total", "", ["kind"], initial=[("pear",)])
    assert registry.get_sample_value("fruit_total", {"kind": "pear"}) == 0
    total.add(2, "apple")
    total.add(1, "apple")
    for _ in range(3):
        fold()
    assert registry.get_sample_value("fruit_total", {"kind": "apple"}) == 3
    total.add(0.5, "apple")
    fold()
    assert registry.get_sample_value("fruit_total", {"kind": "apple"}) == 3.5


def test_without_labels(registry: CollectorRegistry) -> None:
    total, level = Total("n_total", ""), Level("depth", "", mode="livesum")
    total.value += 2
    total.add(3)
    level.value = 7
    fold()
    level.value -= 7
    fold()
    assert registry.get_sample_value("n_total") == 5
    assert registry.get_sample_value("depth") == 0


def test_observations_are_in_the_buckets_that_observe_would_choose(
    registry: CollectorRegistry,
) -> None:
    bounds = (0.1, 1.0, 10.0)
    ours = Spread("ours", "", ["node"], bounds=bounds)
    theirs = plain.Histogram("theirs", "", buckets=bounds, registry=registry)
    for value in (0.0, 0.1, 0.1000001, 1.0, 5.0, 10.0, 11.0, 1e9):
        ours.note(value, "a")
        theirs.observe(value)
        fold()
    for le in ("0.1", "1.0", "10.0", "+Inf"):
        got = registry.get_sample_value("ours_bucket", {"le": le, "node": "a"})
        assert got == registry.get_sample_value("theirs_bucket", {"le": le}), le
    for name in ("_count", "_sum"):
        got = registry.get_sample_value(f"ours{name}", {"node": "a"})
        assert got == registry.get_sample_value(f"theirs{name}")


def test_events_reach_their_metrics() -> None:
    def value(name: str, **labels: str) -> float:
        fold()
        return plain.REGISTRY.get_sample_value(name, labels) or 0.0

    generated = value("unbroken_tokens_generated_total")
    metrics.attempt_ended("n1", "stalled", discarded=2, repeated=3, detection_seconds=1.5)
    metrics.attempt_ended("n1", "overtaken", discarded=4)
    assert value("unbroken_attempts_total", node="n1", reason="stalled") == 1
    assert value("unbroken_tokens_wasted_total", cause="discarded") == 2
    assert value("unbroken_tokens_wasted_total", cause="repeated") == 3
    assert value("unbroken_tokens_wasted_total", cause="hedge") == 4
    assert value("unbroken_tokens_generated_total") == generated + 9
    assert value("unbroken_detection_seconds_sum", cause="stalled") == 1.5
    metrics.failover("engine_frozen", "exact", "n1")
    labels = {"cause": "engine_frozen", "grade": "exact", "node": "n1"}
    assert value("unbroken_failovers_total", **labels) == 1
    metrics.seam("failover", "exact", gap_seconds=0.2, recovery_seconds=0.1)
    metrics.seam("resumption", "exact")
    assert value("unbroken_seam_gap_seconds_count", kind="failover", grade="exact") == 1
    assert value("unbroken_seam_gap_seconds_count", kind="resumption", grade="exact") == 0
    assert value("unbroken_recovery_seconds_sum", kind="failover") == 0.1
    metrics.hedge("won")
    assert value("unbroken_hedges_total", outcome="won") == 1
    metrics.reclaimed("n1", None, "unverifiable")
    metrics.reclaimed("n1", 0.4, "verified")
    assert value("unbroken_reclaim_seconds_count", node="n1") == 1
    assert value("unbroken_reclaims_total", node="n1", outcome="unverifiable") == 1
    metrics.first_token("m", 0.3, "economy", "")
    metrics.pace("n1", "m").note(0.03)
    assert value("unbroken_first_token_seconds_count", model="m") == 1
    assert value("unbroken_inter_token_seconds_bucket", node="n1", model="m", le="0.02") == 0
    assert value("unbroken_inter_token_seconds_bucket", node="n1", model="m", le="0.03") == 1


class Counted:
    """A ``SessionCount``, and how far the totals have moved since it was made."""

    def __init__(self) -> None:
        self.count = SessionCount()
        self._generated = catalogue.GENERATED.value
        self._delivered = catalogue.DELIVERED.value

    @property
    def tokens(self) -> tuple[float, float]:
        """generated, delivered"""
        return (
            catalogue.GENERATED.value - self._generated,
            catalogue.DELIVERED.value - self._delivered,
        )

    def opened(self, produced: int = 0, delivered: int = 0) -> UUID:
        session_id = uuid4()
        self.count.opened(session_id, produced, delivered)
        return session_id


def test_tokens_are_counted_by_how_far_the_log_has_come() -> None:
    counted = Counted()
    session = counted.opened()
    counted.count.looked(session, 10, 4)
    counted.count.looked(session, 10, 4)
    counted.count.looked(session, 25, 26)  # the mark may be the terminal record's
    assert counted.tokens == (25, 25)


def test_what_another_process_has_counted_is_not_counted_again() -> None:
    counted = Counted()
    session = counted.opened(produced=40, delivered=30)
    counted.count.looked(session, 50, 30)
    counted.count.stored(session, 35, 45)  # it had readers elsewhere, up to 35
    counted.count.looked(session, 50, 50)
    assert counted.tokens == (10, 15)
    counted.count.stored(uuid4(), 10, 12)  # a session of another process, read here
    assert counted.tokens == (10, 17)


def test_evidence_that_comes_after_the_end() -> None:
    counted = Counted()
    session = counted.opened()
    counted.count.looked(session, 30, 10)
    counted.count.closed(session, SessionState.COMPLETED, now=100.0)
    counted.count.stored(session, 10, 30)
    assert counted.tokens == (30, 30)
    assert counted.count.undelivered(100.0 + LATE_SECONDS + 1) == {}


def test_what_nobody_got_is_wasted_once() -> None:
    counted = Counted()
    session = counted.opened()
    counted.count.looked(session, 30, 10)
    counted.count.closed(session, SessionState.FAILED, now=100.0)
    assert counted.count.undelivered(100.0 + LATE_SECONDS - 1) == {}
    overdue = counted.count.undelivered(100.0 + LATE_SECONDS + 1)
    assert list(overdue) == [session]
    assert counted.count.undelivered(1000.0) == {}
    counted.count.wasted_on(overdue[session], stored=22)  # another process knew of twelve more
    fold()
    wasted = plain.REGISTRY.get_sample_value(
        "unbroken_tokens_wasted_total", {"cause": "undelivered"}
    )
    assert wasted == 8


def test_a_suspended_session_wastes_nothing_and_may_be_taken_up_again() -> None:
    counted = Counted()
    session = counted.opened()
    counted.count.looked(session, 30, 10)
    counted.count.closed(session, SessionState.SUSPENDED, now=100.0)
    counted.count.opened(session, 30, 10)
    assert counted.count.undelivered(1000.0) == {}
    counted.count.looked(session, 45, 45)
    assert counted.tokens == (45, 45)
