"""The sweep on real engines: what gateways left, and what belongs to nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from streaming.models import Attempt, Incident, InferenceNode, NodeEvent, TaskRun
from streaming.services.task_runs import recorded
from streaming.tasks import reclaim_kv_cache
from tests.engine_simulator.process import SimulatorProcess
from tests.tasks.rows import (
    Requests,
    add_attempt,
    add_node,
    add_session,
    ended_attempt,
    living_gateway,
    run_together,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def engine() -> Iterator[SimulatorProcess]:
    with SimulatorProcess(pace=50) as process:
        yield process


@pytest.fixture
def requests(engine: SimulatorProcess) -> Iterator[Requests]:
    opened = Requests(engine)
    yield opened
    opened.close()


def sweep_until(outcome: str, attempt: Attempt, seconds: float = 15.0) -> dict[str, Any]:
    """Sweep as beat would, until the attempt is marked so; the last result."""
    deadline = time.monotonic() + seconds
    while True:
        result = reclaim_kv_cache()
        attempt.refresh_from_db()
        if attempt.reclaim == outcome:
            return result
        assert time.monotonic() < deadline, (attempt.reclaim, result)
        time.sleep(0.3)


def test_what_a_dead_gateway_left_is_verified(engine):
    attempt = ended_attempt(add_node(engine))
    assert reclaim_kv_cache()["verified"] == 1
    attempt.refresh_from_db()
    assert attempt.reclaim == "verified"
    assert attempt.reclaimed_at > attempt.ended_at


def test_the_gateways_come_first(engine):
    attempt = ended_attempt(add_node(engine), seconds_ago=0.2)
    assert reclaim_kv_cache()["verified"] == 0
    attempt.refresh_from_db()
    assert attempt.reclaim == "pending"


def test_live_attempts_are_told_from_the_rest(engine, requests):
    node = add_node(engine)
    ended = ended_attempt(node)
    with living_gateway() as gateway:
        add_attempt(add_session(gateway), node)
        requests.begin("live")
        requests.begin("left")
        assert reclaim_kv_cache()["surplus"][node.name]["requests"] == 1
        requests.leave("left")
        result = sweep_until("verified", ended)
    assert result["surplus"] == {}
    assert Incident.objects.count() == 0


def test_what_a_living_gateway_has_just_begun_is_no_surplus(engine, requests):
    """Its row may not be written yet; its heartbeat tells."""
    node = add_node(engine)
    with living_gateway() as gateway:
        gateway.node_streams = {str(node.pk): 1}
        gateway.save()
        requests.begin("live")
        assert reclaim_kv_cache()["surplus"] == {}


def test_what_belongs_to_nobody_is_told_from_what_a_heartbeat_has_announced(engine, requests):
    """The result is kept as JSON, whichever of PostgreSQL's number types it was counted in."""
    node = add_node(engine)
    with living_gateway() as gateway:
        gateway.node_streams = {str(node.pk): 1}
        gateway.save()
        requests.begin("live")
        requests.begin("left")
        assert reclaim_kv_cache()["surplus"][node.name]["requests"] == 1
    assert TaskRun.objects.get().result["surplus"][node.name]["requests"] == 1


def test_requests_that_outlive_their_client_are_aborted_by_id():
    with SimulatorProcess(pace=50, scale_out=True) as engine:
        requests = Requests(engine)
        ended = ended_attempt(add_node(engine, capabilities={"figures": True, "abort": True}))
        engine.set_fault(kind="zombie", times=-1)
        requests.begin(ended.engine_request_id)
        requests.leave(ended.engine_request_id)
        sweep_until("verified", ended)
        assert engine.stats()["outcomes"] == {"aborted": 1}
        requests.close()


def test_what_does_not_go_is_overdue_and_an_incident_until_it_is_gone(engine, requests):
    node = add_node(engine)
    ended = ended_attempt(node, seconds_ago=4)
    engine.set_fault(kind="zombie", times=-1)
    requests.begin(ended.engine_request_id)
    requests.leave(ended.engine_request_id)
    sweep_until("overdue", ended)
    incident = Incident.objects.get()
    assert (incident.kind, incident.subject, incident.node) == ("kv_not_reclaimed", node.name, node)
    assert incident.data["surplus"] == 1
    engine.restart()
    sweep_until("verified", ended)
    incident.refresh_from_db()
    assert incident.closed_at is not None
    kinds = set(NodeEvent.objects.values_list("kind", flat=True))
    assert kinds == {"kv_not_reclaimed", "kv_reclaimed"}


def test_requests_that_belong_to_nobody_are_an_incident(engine, requests):
    node = add_node(engine)
    requests.begin("stranger")
    deadline = time.monotonic() + 15
    while not Incident.objects.exists():
        assert time.monotonic() < deadline
        reclaim_kv_cache()
        time.sleep(0.3)
    assert TaskRun.objects.get().result["surplus"][node.name]["requests"] == 1
    requests.leave("stranger")
    while Incident.objects.filter(closed_at__isnull=True).exists():
        assert time.monotonic() < deadline
        # Nothing waits for it any more, so only a look at every node can find that it is gone.
        reclaim_kv_cache()


def test_on_a_shared_node_strangers_are_none_of_our_business(engine, requests):
    node = add_node(engine, options={"exclusive": "off"})
    ended = ended_attempt(node)
    requests.begin("stranger")
    sweep_until("unverifiable", ended)
    assert Incident.objects.count() == 0
    requests.leave("stranger")
    sweep_until("verified", ended)


def test_a_frozen_node_is_unverifiable_until_it_goes_on(engine):
    node = add_node(engine)
    ended = ended_attempt(node)
    engine.stop()
    sweep_until("unverifiable", ended)
    engine.cont()
    sweep_until("verified", ended)


def test_a_node_that_is_not_up_proves_nothing(engine):
    node = add_node(engine, health="suspect")
    ended = ended_attempt(node)
    sweep_until("unverifiable", ended)
    InferenceNode.objects.update(health="up")
    sweep_until("verified", ended)


def test_a_node_that_was_removed_cannot_be_asked_any_more(engine):
    node = add_node(engine)
    ended = [ended_attempt(node), ended_attempt(None)]
    InferenceNode.objects.all().delete()
    assert reclaim_kv_cache()["unverifiable"] == 2
    assert {Attempt.objects.get(pk=attempt.pk).reclaim for attempt in ended} == {"unverifiable"}
    assert reclaim_kv_cache()["unverifiable"] == 0


def test_what_could_not_be_verified_in_a_day_is_left_alone(engine):
    node = add_node(engine)
    ended = ended_attempt(node, reclaim="unverifiable", ended_at=timezone.now() - timedelta(days=2))
    assert reclaim_kv_cache()["verified"] == 0
    ended.refresh_from_db()
    assert ended.reclaim == "unverifiable"


def test_with_nothing_to_do_nobody_is_asked(engine):
    node = add_node(engine, capabilities={})
    engine.stop()  # an engine that does not answer would show
    began = time.monotonic()
    assert reclaim_kv_cache()["waiting"] == 0
    assert time.monotonic() - began < 1
    assert node.health == "up"


def test_twice_at_once_one_of_the_two_does_nothing(engine):
    node = add_node(engine)
    for _ in range(20):
        ended_attempt(node)
    results = run_together(reclaim_kv_cache, 2)
    assert sum(result.get("verified", 0) for result in results) == 20
    assert Attempt.objects.filter(reclaim="verified").count() == 20
    row = TaskRun.objects.get()
    assert (row.runs, row.failures) == (2, 0)
    assert row.result["verified"] == 20


def test_a_run_that_fails_is_noted_and_raised():
    @recorded("failing")
    def fail() -> dict[str, Any]:
        raise RuntimeError("the reason\x00")

    with pytest.raises(RuntimeError):
        fail()
    row = TaskRun.objects.get(name="failing")
    assert (row.runs, row.failures, row.succeeded_at) == (1, 1, None)
    assert row.error == "RuntimeError: the reason\ufffd"
