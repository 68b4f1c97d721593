"""Nodes whose caches are full of nothing: reclaimed, drained, reset and resumed, on real engines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from streaming.models import Incident, InferenceNode, Lease, ModelPolicy, NodeEvent
from streaming.services import node_admin
from streaming.services.defragment import defragment_nodes
from tests.engine_simulator.process import SimulatorProcess
from tests.tasks.rows import Requests, add_node, ended_attempt, run_together

pytestmark = pytest.mark.django_db(transaction=True)

CAN = {"figures": True, "reset_cache": True, "abort": True}


@pytest.fixture
def engine() -> Iterator[SimulatorProcess]:
    """An engine of 64 blocks whose cache can be reset, and half of it is occupied by nothing."""
    with SimulatorProcess(dev_mode=True, scale_out=True, kv_blocks=64) as process:
        leak(process)
        yield process


@pytest.fixture
def other() -> Iterator[SimulatorProcess]:
    with SimulatorProcess(dev_mode=True, kv_blocks=64) as process:
        yield process


def leak(engine: SimulatorProcess) -> None:
    """End a request that leaves its blocks occupied."""
    engine.set_fault(kind="kv_leak")
    requests = Requests(engine)
    requests.begin("leak", 400)
    while engine.stats()["running"]:
        requests.read("leak")
    requests.close()
    assert 0.3 < engine.stats()["kv_usage"] < 0.6


def drained(node: InferenceNode) -> None:
    """What the gateways do once nothing of theirs runs there."""
    changed = InferenceNode.objects.filter(pk=node.pk, admin_state="draining")
    assert changed.update(admin_state="drained") == 1


def did(node: InferenceNode, result: dict[str, Any]) -> str:
    return result["nodes"][node.name]["did"]


def kinds(node: InferenceNode) -> list[str]:
    events = NodeEvent.objects.filter(node=node, kind__startswith="defragment").order_by("pk")
    return list(events.values_list("kind", flat=True))


def test_a_fragmented_node_is_drained_reset_and_resumed(engine, other):
    node, second = add_node(engine, capabilities=CAN), add_node(other, capabilities=CAN)
    result = defragment_nodes()
    assert result["under_way"] == 1
    assert did(node, result) == "defragment begun"
    assert result["nodes"][second.name] == {"index": 0.0, "did": "nothing"}
    node.refresh_from_db()
    assert node.admin_state == "draining"
    assert defragment_nodes()["under_way"] == 1  # nothing happens before it is drained
    drained(node)
    assert defragment_nodes()["under_way"] == 0
    node.refresh_from_db()
    assert node.admin_state == "active"
    assert engine.stats()["kv_usage"] == 0
    assert kinds(node) == ["defragment_begun", "defragmented"]
    event = NodeEvent.objects.get(kind="defragmented")
    assert event.data["before"] > 0.3
    assert event.data["after"] == 0
    assert event.data["by"] == "defragment_nodes"
    assert did(node, defragment_nodes()) == "nothing"


def test_reclaiming_comes_first(other):
    with SimulatorProcess(scale_out=True, dev_mode=True, kv_blocks=64, pace=100) as engine:
        node = add_node(engine, capabilities=CAN)
        add_node(other, capabilities=CAN)
        ended = ended_attempt(node)
        engine.set_fault(kind="zombie", times=-1)
        requests = Requests(engine)
        requests.begin(ended.engine_request_id, 500)
        while engine.stats()["kv_usage"] < 0.2:
            requests.read(ended.engine_request_id)
        requests.leave(ended.engine_request_id)
        assert did(node, defragment_nodes()) == "defragment reclaimed"
        assert engine.stats()["kv_usage"] == 0
        ended.refresh_from_db()
        assert ended.reclaim == "verified"
        node.refresh_from_db()
        assert node.admin_state == "active"
        requests.close()


def test_a_dry_run_only_says_what_it_would_do(engine, other):
    node = add_node(engine, capabilities=CAN, defragment="dry_run")
    add_node(other, capabilities=CAN)
    assert did(node, defragment_nodes()) == "defragment would"
    node.refresh_from_db()
    assert node.admin_state == "active"
    assert engine.stats()["kv_usage"] > 0.3
    assert NodeEvent.objects.get().data["index"] > 0.3


@pytest.mark.parametrize("where", ["node", "model"])
def test_switched_off(engine, other, where):
    node = add_node(engine, capabilities=CAN, defragment="off" if where == "node" else "dry_run")
    add_node(other, capabilities=CAN)
    if where == "model":
        ModelPolicy.objects.create(model="sim-model", defragment="off")
    assert did(node, defragment_nodes()) == "switched off"
    assert kinds(node) == []


def test_never_the_last_one_that_is_up(engine, other):
    node = add_node(engine, capabilities=CAN)
    for columns in ({"health": "down"}, {"admin_state": "drained"}, {"models_served": ["another"]}):
        second = add_node(other, capabilities=CAN, **columns)
        assert did(node, defragment_nodes()) == "defragment skipped"
        second.delete()
    whys = {event.data["why"] for event in NodeEvent.objects.filter(node=node)}
    assert whys == {"it is the last one of sim-model that is up"}
    node.refresh_from_db()
    assert node.admin_state == "active"


def test_never_two_nodes_of_one_model_at_once(engine, other):
    leak(other)
    nodes = [add_node(engine, capabilities=CAN), add_node(other, capabilities=CAN)]
    with SimulatorProcess(kv_blocks=64) as third:
        add_node(third)
        result = defragment_nodes()
    assert [did(node, result) for node in nodes] == ["defragment begun", "defragment skipped"]
    assert "is being cleaned" in NodeEvent.objects.get(node=nodes[1]).data["why"]


def test_an_engine_without_a_reset_is_skipped_and_it_is_said(engine, other):
    node = add_node(engine, capabilities={"figures": True})
    add_node(other)
    assert did(node, defragment_nodes()) == "defragment skipped"
    assert NodeEvent.objects.get(node=node).data["why"] == "its engine offers no reset"


def test_a_node_that_others_use_is_skipped(engine, other):
    node = add_node(engine, capabilities=CAN, options={"exclusive": "off"})
    add_node(other)
    assert did(node, defragment_nodes()) == "defragment skipped"


def test_a_worker_that_is_killed_leaves_a_node_that_the_next_one_resumes(engine, other):
    """All that is known of it stands in the database; the run that began it is forgotten here."""
    node = add_node(engine, capabilities=CAN)
    add_node(other, capabilities=CAN)
    defragment_nodes()
    Lease.objects.create(
        name="defragment_nodes", holder="a dead worker", until=timezone.now() + timedelta(minutes=1)
    )
    assert defragment_nodes() == {"skipped": "another run"}
    Lease.objects.update(until=timezone.now() - timedelta(seconds=1))  # an hour later
    assert defragment_nodes()["under_way"] == 0
    node.refresh_from_db()
    assert node.admin_state == "active"
    assert kinds(node) == ["defragment_begun", "defragment_given_up"]
    assert not Lease.objects.exists()


def test_a_node_that_dies_meanwhile_is_resumed(engine, other):
    node = add_node(engine, capabilities=CAN)
    add_node(other, capabilities=CAN)
    defragment_nodes()
    drained(node)
    engine.kill()
    assert defragment_nodes()["under_way"] == 1  # it may come back
    Lease.objects.update(until=timezone.now())
    defragment_nodes()
    node.refresh_from_db()
    assert node.admin_state == "active"
    assert NodeEvent.objects.get(kind="defragment_given_up").data["why"] == "it says nothing"


def test_a_reset_that_does_nothing_is_an_incident_until_the_cache_is_free(engine, other):
    node = add_node(engine, capabilities=CAN)
    add_node(other, capabilities=CAN)
    defragment_nodes()
    drained(node)
    engine.close()
    with SimulatorProcess(port=engine.port, kv_blocks=64) as without_a_reset:
        leak(without_a_reset)
        defragment_nodes()
    node.refresh_from_db()
    assert node.admin_state == "active"
    assert NodeEvent.objects.get(kind="defragment_failed").data["reset"] is False
    incident = Incident.objects.get()
    assert (incident.kind, incident.subject) == ("kv_fragmented", node.name)
    with SimulatorProcess(port=engine.port, kv_blocks=64):
        defragment_nodes()
    incident.refresh_from_db()
    assert incident.closed_at is not None


def test_an_operator_who_resumes_it_meanwhile_is_respected(engine, other):
    node = add_node(engine, capabilities=CAN)
    add_node(other, capabilities=CAN)
    defragment_nodes()
    node_admin.resume_node(node.name)
    result = defragment_nodes()
    assert result["under_way"] == 0
    assert node.name not in result["nodes"]
    assert kinds(node) == ["defragment_begun", "defragment_given_up"]


def test_nodes_that_an_operator_has_drained_are_left_alone(engine, other):
    node = add_node(engine, capabilities=CAN, admin_state="drained")
    add_node(other, capabilities=CAN)
    assert node.name not in defragment_nodes()["nodes"]
    node.refresh_from_db()
    assert node.admin_state == "drained"
    assert engine.stats()["kv_usage"] > 0.3


def test_twice_at_once_one_of_the_two_does_nothing(engine, other):
    node = add_node(engine, capabilities=CAN)
    add_node(other, capabilities=CAN)
    results = run_together(defragment_nodes, 2)
    assert {"skipped": "another run"} in results or len(results) == 2
    assert kinds(node) == ["defragment_begun"]
    assert Incident.objects.count() == 0
