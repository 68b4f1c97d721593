"""What operators order of nodes: in the service, and from the pages that ask first."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from streaming.core.nodes import NodeSpec
from streaming.models import Attempt, InferenceNode, NodeEvent
from streaming.services import node_admin, node_orders
from streaming.services import reclaim as sweeps
from streaming.services.leases import take_lease
from streaming.services.refused import Refused
from tests.admin.test_operations import act
from tests.desk.staff import ALL, logged_in, member, told
from tests.engine_simulator.process import SimulatorProcess
from tests.tasks.rows import add_node, ended_attempt

pytestmark = pytest.mark.django_db

PAT = "user:pat"


def node(**columns) -> InferenceNode:
    made = node_admin.add_node(NodeSpec.parse("gpu-a=vllm+http://gpu-a:8000"), by=PAT)
    InferenceNode.objects.filter(pk=made.pk).update(**columns)
    told()
    return InferenceNode.objects.get(pk=made.pk)


def history(one: InferenceNode) -> list[tuple[str, str]]:
    events = NodeEvent.objects.filter(node=one).exclude(kind="added").order_by("id")
    return [(event.kind, event.data["by"]) for event in events]


def test_a_probe_is_asked_for_each_time_anew():
    one = node()
    node_orders.probe("gpu-a", by=PAT)
    first = InferenceNode.objects.get().probe_asked_at
    assert first is not None
    assert history(one) == [("probe_asked", PAT)]
    assert told() == [("node.probe", PAT, "node:gpu-a")]


def test_a_circuit_is_reset_where_it_is_not_closed():
    one = node(circuit="open")
    node_orders.reset_circuit("gpu-a", by=PAT)
    one.refresh_from_db()
    assert one.circuit_reset_at is not None
    assert one.circuit == "open"  # the gateways close it, and say so
    assert history(one) == [("circuit_reset", PAT)]
    assert told() == [("node.reset_circuit", PAT, "node:gpu-a")]
    InferenceNode.objects.update(circuit="closed")
    with pytest.raises(Refused, match="nothing to reset"):
        node_orders.reset_circuit("gpu-a", by=PAT)
    assert told() == []


def test_an_order_to_a_name_is_one_to_its_addresses():
    name = node(options={"dns": "all"})
    for number in (1, 2):
        InferenceNode.objects.create(
            name=f"gpu-a-{number}", dialect="vllm", base_url=f"http://10.0.0.{number}:8000",
            parent=name, source="dns", circuit="open" if number == 2 else "closed",
        )  # fmt: skip
    node_orders.probe("gpu-a", by=PAT)
    node_orders.reset_circuit("gpu-a", by=PAT)
    orders = InferenceNode.objects.order_by("name").values_list(
        "probe_asked_at", "circuit_reset_at"
    )
    assert [(bool(probe), bool(reset)) for probe, reset in orders] == [
        (False, False), (True, False), (True, True),
    ]  # fmt: skip
    assert [action for action, _, _ in told()] == ["node.probe", "node.reset_circuit"]


def test_an_unknown_node_is_refused():
    for order in (node_orders.probe, node_orders.reset_circuit, node_orders.reclaim):
        with pytest.raises(Refused, match="There is no node"):
            order("gpu-x", by=PAT)


def test_what_is_not_known_to_be_gone_is_looked_for_at_once():
    with SimulatorProcess("vllm") as engine:
        one = add_node(engine)
        attempt = ended_attempt(one)
        elsewhere = ended_attempt(None)
        found = node_orders.reclaim(one.name, by=PAT)
    assert (found.verified, found.overdue, found.surplus) == (1, 0, 0)
    assert str(found).startswith("1 requests seen to be gone")
    attempt.refresh_from_db()
    assert attempt.reclaim == Attempt.Reclaim.VERIFIED
    elsewhere.refresh_from_db()
    assert elsewhere.reclaim != Attempt.Reclaim.VERIFIED
    assert history(one) == [("reclaimed", PAT)]
    assert told() == [("node.reclaim", PAT, f"node:{one.name}")]
    assert take_lease(sweeps.TASK, "the next", 1)


def test_reclaiming_waits_for_another_sweep_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(node_orders, "PATIENCE_SECONDS", 0.0)
    one = node()
    assert take_lease(sweeps.TASK, "the worker", 30)
    with pytest.raises(Refused, match="Another sweep"):
        node_orders.reclaim("gpu-a", by=PAT)
    assert history(one) == []
    assert told() == []


# --- pages ------------------------------------------------------------------------------------------

OPERATOR = ["view_inferencenode", "operate_node", ALL]


def order_page(one: InferenceNode, name: str) -> str:
    return reverse("admin:streaming_inferencenode_order", args=[one.pk, name])


@pytest.mark.parametrize(
    ("order", "event", "action"),
    [
        ("drain", "draining", "node.drain"),
        ("probe", "probe_asked", "node.probe"),
        ("reclaim", "reclaimed", "node.reclaim"),
        ("reset_circuit", "circuit_reset", "node.reset_circuit"),
    ],
)
def test_a_button_asks_before_anything_is_done(order, event, action):
    one = node(circuit="open")
    client = logged_in(member("op", OPERATOR))
    page = client.get(reverse("admin:streaming_inferencenode_change", args=[one.pk]))
    assert order_page(one, order) in page.text
    asked = client.get(order_page(one, order))
    assert asked.status_code == 200
    assert history(one) == []
    done = client.post(order_page(one, order), follow=True)
    assert done.redirect_chain
    assert history(one) == [(event, "user:op")]
    assert told() == [(action, "user:op", "node:gpu-a")]
    assert LogEntry.objects.count() == 1


def test_the_list_has_the_same_as_actions():
    one = node(circuit="open")
    client = logged_in(member("op", OPERATOR))
    for order in ("drain", "resume", "probe", "reset_circuit"):
        assert "sure" in act(client, "inferencenode", order, one, confirmed=False).text
        act(client, "inferencenode", order, one)
    assert [action for action, _, _ in told()] == [
        "node.drain", "node.resume", "node.probe", "node.reset_circuit",
    ]  # fmt: skip


def test_what_would_change_nothing_is_not_offered():
    one = node()
    page = logged_in(member("op", OPERATOR)).get(
        reverse("admin:streaming_inferencenode_change", args=[one.pk])
    )
    for order, offered in (("drain", True), ("resume", False), ("reset_circuit", False)):
        assert (order_page(one, order) in page.text) is offered


def test_orders_take_a_permission_of_their_own():
    """Who may change what is configured may not therefore order anything."""
    one = node(circuit="open")
    client = logged_in(member("editor", ["view_inferencenode", "change_inferencenode", ALL]))
    page = client.get(reverse("admin:streaming_inferencenode_change", args=[one.pk]))
    for order in ("drain", "resume", "probe", "reclaim", "reset_circuit"):
        assert order_page(one, order) not in page.text
        assert client.get(order_page(one, order)).status_code == 403
        assert client.post(order_page(one, order)).status_code == 403
        act(client, "inferencenode", order, one)
    assert client.get(order_page(one, "nonsense")).status_code == 403
    assert history(one) == []
    assert told() == []
