"""Run-time switches of nodes and models, by their command."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from streaming.models import InferenceNode, ModelPolicy, NodeEvent

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("switch", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def node() -> InferenceNode:
    return InferenceNode.objects.create(
        name="gpu-a", dialect="vllm", base_url="http://h:1", models_served=["m"]
    )


def test_a_switch_of_a_node_is_turned_and_noted(node):
    assert "failover is off on gpu-a" in run("failover", "off", "--node", "gpu-a")
    run("defragment", "dry-run", "--node", "gpu-a")
    run("defragment", "dry_run", "--node", "gpu-a")  # is so already
    node.refresh_from_db()
    assert (node.failover, node.hedging, node.defragment) == ("off", "on", "dry_run")
    noted = [(event.kind, event.data) for event in NodeEvent.objects.order_by("id")]
    assert [(kind, data["switch"], data["was"], data["now"]) for kind, data in noted] == [
        ("switched", "failover", "on", "off"),
        ("switched", "defragment", "on", "dry_run"),
    ]
    assert all(data["by"].startswith("command:") for _, data in noted)


def test_a_switch_of_a_model_is_one_on_all_nodes(node):
    assert "No node was seen" not in run("hedging", "off", "--model", "m")
    assert "No node was seen serving other" in run("failover", "off", "--model", "other")
    assert set(ModelPolicy.objects.values_list("model", "failover", "hedging")) == {
        ("m", "on", "off"), ("other", "off", "on"),
    }  # fmt: skip
    listed = run()
    assert "gpu-a" in listed
    assert "other" in listed
    assert listed == run("list")


def test_a_switch_of_a_name_is_one_of_its_addresses(node):
    child = InferenceNode.objects.create(
        name="gpu-a@1", dialect="vllm", base_url="http://1:1", source="dns", parent=node
    )
    run("hedging", "off", "--node", "gpu-a")
    child.refresh_from_db()
    assert child.hedging == "off"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("colour", "on", "--node", "gpu-a"), "There is no switch 'colour'"),
        (("failover", "dry_run", "--node", "gpu-a"), "only defragment has a dry run"),
        (("hedging", "maybe", "--node", "gpu-a"), "hedging cannot be 'maybe'"),
        (("failover", "off", "--node", "gpu-x"), "There is no node 'gpu-x'; known: gpu-a"),
        (("failover", "off"), "either --node NAME or --model NAME"),
        (("failover", "off", "--node", "gpu-a", "--model", "m"), "either --node NAME or --model"),
        (("failover", "--node", "gpu-a"), "Say what failover is to be"),
        (("failover", "off", "--model", "m" * 201), "at most 200"),
    ],
)
def test_what_cannot_be_is_refused(node, arguments, words):
    with pytest.raises(CommandError, match=words):
        run(*arguments)
    assert not NodeEvent.objects.exists()
    assert not ModelPolicy.objects.exists()


def test_there_is_no_hedging_without_failover(node):
    for target in (("--node", "gpu-a"), ("--model", "m")):
        run("failover", "off", *target)
        run("hedging", "off", *target)
        with pytest.raises(CommandError, match="turn failover on first"):
            run("hedging", "on", *target)
        run("failover", "on", *target)
        run("hedging", "on", *target)
