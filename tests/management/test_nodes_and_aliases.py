"""Engine nodes and model aliases, by their services and by their commands."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from streaming.core.nodes import NodeSpec
from streaming.models import GatewayInstance, InferenceNode, ModelAlias, NodeEvent, Tenant
from streaming.services import node_admin
from streaming.services.refused import Refused

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_a_node_is_added_with_its_options():
    run("node", "add", "gpu-a=vllm+http://gpu-a:8000/?continuation=text&template=chatml")
    node = InferenceNode.objects.get()
    assert (node.name, node.dialect, node.base_url) == ("gpu-a", "vllm", "http://gpu-a:8000")
    assert node.options == {"continuation": "text", "template": "chatml"}
    assert (node.source, node.admin_state, node.health) == ("command", "active", "unknown")
    node.clean()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gpu-a", "is not of the form"),
        ("x=triton+http://h:1", "unknown dialect 'triton'"),
        ("x=vllm+http://h:1?continuation=text", "needs a template"),
        ("x=vllm+http://h:1?colour=red", "unknown node option 'colour'"),
        ("gpu-a=vllm+http://other:1", "There is a node gpu-a at http://h:1 already"),
        ("gpu-b=vllm+http://h:1", "There is a node gpu-a at http://h:1 already"),
        (f"{'x' * 101}=vllm+http://other:1", "at most 100 characters"),
    ],
)
def test_a_node_that_cannot_be_is_refused(spec, words):
    run("node", "add", "gpu-a=vllm+http://h:1")
    with pytest.raises(CommandError, match=words):
        run("node", "add", spec)
    assert InferenceNode.objects.count() == 1


def test_a_node_is_drained_resumed_and_removed():
    run("node", "add", "gpu-a=vllm+http://h:1")
    run("node", "drain", "gpu-a")
    assert InferenceNode.objects.get().admin_state == "draining"
    with pytest.raises(CommandError, match="gpu-a is draining already"):
        run("node", "drain", "gpu-a")
    run("node", "resume", "gpu-a")
    assert InferenceNode.objects.get().admin_state == "active"
    with pytest.raises(CommandError, match="gpu-a is active already"):
        run("node", "resume", "gpu-a")
    run("node", "remove", "gpu-a")
    assert not InferenceNode.objects.exists()
    with pytest.raises(CommandError, match="There is no node 'gpu-a'; known: none"):
        run("node", "drain", "gpu-a")


def test_draining_leaves_alone_what_gateways_write():
    node = node_admin.add_node(NodeSpec.parse("gpu-a=vllm+http://h:1"))
    InferenceNode.objects.update(health="up", models_served=["m"])
    node_admin.drain_node(node.name)
    node = InferenceNode.objects.get()
    assert (node.health, node.models_served, node.admin_state) == ("up", ["m"], "draining")


def test_a_node_of_the_environment_is_not_removed():
    node_admin.add_node(NodeSpec.parse("gpu-a=vllm+http://h:1"), source="environment")
    with pytest.raises(Refused, match="is in ENGINE_NODES"):
        node_admin.remove_node("gpu-a")


def test_the_list_shows_health_and_says_when_nobody_has_looked():
    assert "no engine nodes" in run("node", "list")
    run("node", "add", "gpu-a=llamacpp+http://h:1")
    listed = run("node", "list")
    assert "gpu-a" in listed
    assert "llama.cpp" in listed
    assert "not probed yet" in listed


def test_the_list_shows_state_circuit_and_load():
    node = node_admin.add_node(NodeSpec.parse("gpu-a=vllm+http://h:1"))
    now = timezone.now()
    InferenceNode.objects.update(
        health="up", models_served=["m"], checked_at=now, circuit="half_open",
        figures={"running": 7.0, "waiting": 3, "kv_usage": 0.426},
        capabilities={"token_ids": True, "prefix_caching": True, "abort": False},
    )  # fmt: skip
    for seconds, streams in ((0, 2), (1, 3), (60, 100)):  # the last one has died
        GatewayInstance.objects.create(
            hostname="h", pid=seconds, started_at=now, node_streams={str(node.pk): streams},
            heartbeat_at=now - timedelta(seconds=seconds),
        )  # fmt: skip
    listed = run("node", "list").splitlines()[1]
    assert listed.split()[:11] == [
        "gpu-a", "up", "half_open", "vLLM", "http://h:1", "m", "5", "7", "3", "43%", "ids,",
    ]  # fmt: skip
    assert "prefix cache" in listed
    assert "0 s ago" in listed
    node_admin.drain_node("gpu-a")
    assert run("node", "list").splitlines()[1].split()[1] == "draining"
    progress = node_admin.drain_progress("gpu-a")
    assert (progress.streams, progress.gateways, progress.unaware) == (5, 2, 2)
    GatewayInstance.objects.filter(pid=0).update(nodes_read_at=timezone.now())
    assert node_admin.drain_progress("gpu-a").unaware == 1


def test_nobody_waits_for_a_drain_that_nobody_does(monkeypatch):
    monkeypatch.setattr(node_admin, "DEAD_AFTER", timedelta(0))
    run("node", "add", "gpu-a=vllm+http://h:1")
    with pytest.raises(CommandError, match="No gateway is running"):
        run("node", "drain", "gpu-a", "--wait")
    InferenceNode.objects.update(admin_state="drained")
    assert "gpu-a is drained" in run("node", "drain", "gpu-a", "--wait")


def test_what_is_done_to_a_name_is_done_to_its_addresses():
    pool = node_admin.add_node(NodeSpec.parse("pool=vllm+http://pool:1?dns=all"))
    InferenceNode.objects.create(
        name="pool@1", dialect="vllm", base_url="http://1:1", source="dns", parent=pool
    )
    with pytest.raises(Refused, match="is an address of pool and would come back"):
        node_admin.remove_node("pool@1")
    node_admin.drain_node("pool", by="alice")
    assert set(InferenceNode.objects.values_list("admin_state", flat=True)) == {"draining"}
    node_admin.resume_node("pool", by="alice")
    assert set(InferenceNode.objects.values_list("admin_state", flat=True)) == {"active"}
    InferenceNode.objects.filter(name="pool@1").update(parent=None)
    assert InferenceNode.objects.get(name="pool@1").state == "draining"
    for act in (node_admin.drain_node, node_admin.resume_node):
        with pytest.raises(Refused):
            act("pool@1")
    node_admin.remove_node("pool", by="alice")
    assert [
        (event.node_name, event.kind, event.data["by"])
        for event in NodeEvent.objects.exclude(kind="added").order_by("id")
    ] == [
        ("pool", "draining", "alice"), ("pool@1", "draining", "alice"),
        ("pool", "resumed", "alice"), ("pool@1", "resumed", "alice"), ("pool", "removed", "alice"),
    ]  # fmt: skip


def test_aliases_of_all_and_of_one_tenant_live_side_by_side():
    Tenant.objects.create(name="acme")
    told = run("model_alias", "set", "chat-default", "small")
    assert "No node was seen serving small so far." in told
    run("model_alias", "set", "chat-default", "large", "--tenant", "acme")
    run("model_alias", "set", "chat-default", "medium")
    assert set(ModelAlias.objects.values_list("tenant__name", "model")) == {
        (None, "medium"), ("acme", "large"),
    }  # fmt: skip
    listed = run("model_alias", "list")
    assert "(all)" in listed
    assert "acme" in listed
    assert "(all)" not in run("model_alias", "list", "--tenant", "acme")
    run("model_alias", "remove", "chat-default", "--tenant", "acme")
    assert ModelAlias.objects.get().tenant is None
    run("model_alias", "remove", "chat-default")
    assert "no model aliases" in run("model_alias", "list")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("set", "a", "m", "--tenant", "nobody"), "There is no tenant 'nobody'"),
        (("set", "a", ""), "cannot be blank"),
        (("set", "a", "m" * 201), "at most 200"),
        (("remove", "a"), "There is no alias 'a' for all tenants"),
    ],
)
def test_an_alias_that_cannot_be_is_refused(arguments, words):
    with pytest.raises(CommandError, match=words):
        run("model_alias", *arguments)
    assert not ModelAlias.objects.exists()
