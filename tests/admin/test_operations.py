"""What operators do in the admin: nodes, keys, aliases."""

from __future__ import annotations

import hashlib
import html
import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.urls import reverse

from streaming.core.nodes import NodeSpec
from streaming.models import (
    ApiKey,
    InferenceNode,
    ModelAlias,
    ModelPolicy,
    NodeEvent,
    Tenant,
)
from streaming.services import node_admin
from streaming.services.api_keys import create_api_key

pytestmark = pytest.mark.django_db


NO_ROWS = {"tenant": {"members-TOTAL_FORMS": "0", "members-INITIAL_FORMS": "0"}}
"""What a browser sends of rows that are edited within a page, where there are none."""
SWITCHES = {"failover": "on", "hedging": "on", "defragment": "on"}


def submit(client, model: str, view: str, /, *arguments, **data):
    url = reverse(f"admin:streaming_{model}_{view}", args=arguments)
    return client.post(url, {**NO_ROWS.get(model, {}), **data}, follow=True)


def act(client, model: str, action: str, *objects, confirmed: bool = True):
    data = {"action": action, "_selected_action": [obj.pk for obj in objects]}
    return submit(
        client, model, "changelist", **data, **({"confirmed": "yes"} if confirmed else {})
    )


def node(spec: str = "gpu-a=vllm+http://gpu-a:8000", **arguments) -> InferenceNode:
    return node_admin.add_node(NodeSpec.parse(spec), **arguments)


def test_nodes_are_drained_and_resumed_after_a_confirmation(admin_client):
    one = node()
    asked = act(admin_client, "inferencenode", "drain", one, confirmed=False)
    assert "Drain them?" in asked.text
    assert "gpu-a" in asked.text
    one.refresh_from_db()
    assert one.admin_state == "active"
    act(admin_client, "inferencenode", "drain", one)
    one.refresh_from_db()
    assert one.admin_state == "draining"
    assert LogEntry.objects.get().change_message == "Draining."
    again = act(admin_client, "inferencenode", "drain", one)
    assert "is draining already" in again.text
    act(admin_client, "inferencenode", "resume", one)
    one.refresh_from_db()
    assert one.admin_state == "active"


def test_what_is_done_to_a_node_is_in_its_history(admin_client):
    add_node(admin_client)
    one = InferenceNode.objects.get()
    act(admin_client, "inferencenode", "drain", one)
    submit(
        admin_client, "inferencenode", "change", one.pk,
        name="gpu-b", dialect="vllm", base_url="http://gpu-b:8000", weight="2", options="{}",
        **{**SWITCHES, "failover": "off"},
    )  # fmt: skip
    submit(admin_client, "inferencenode", "delete", one.pk, post="yes")
    assert [
        (event.node_name, event.kind, event.data["by"], event.data.get("what"))
        for event in NodeEvent.objects.order_by("id")
    ] == [
        ("gpu-b", "added", "user:admin", None),
        ("gpu-b", "draining", "user:admin", None),
        ("gpu-b", "changed", "user:admin", "options"),
        ("gpu-b", "changed", "user:admin", "failover"),
        ("gpu-b", "removed", "user:admin", None),
    ]


def test_a_policy_is_made_and_what_cannot_be_is_refused(admin_client):
    asked = {"model": "m", **SWITCHES, "failover": "off", "hedging": "off"}
    submit(admin_client, "modelpolicy", "add", **asked)
    policy = ModelPolicy.objects.get()
    refused = submit(
        admin_client, "modelpolicy", "change", policy.pk, **{**asked, "hedging": "on"}
    )  # fmt: skip
    assert "turn failover on" in refused.text
    assert ModelPolicy.objects.get().hedging == "off"
    assert {event.data["switch"] for event in NodeEvent.objects.all() if "switch" in event.data} >= {
        "failover", "hedging",
    }  # fmt: skip


def test_the_confirmation_sends_what_the_action_needs(admin_client):
    """Press the button that the page really has."""
    one = node()
    asked = act(admin_client, "inferencenode", "drain", one, confirmed=False)
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', asked.text))
    admin_client.post(reverse("admin:streaming_inferencenode_changelist"), fields)
    one.refresh_from_db()
    assert one.admin_state == "draining"


def test_actions_take_the_permission_to_change(client, django_user_model):
    user = django_user_model.objects.create_user("reader", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__regex="^(view_|all_tenants)"))
    client.force_login(user)
    one = node()
    key, _ = create_api_key(tenant_name="acme")
    act(client, "inferencenode", "drain", one)
    act(client, "apikey", "revoke", key)
    assert not InferenceNode.objects.exclude(admin_state="active").exists()
    assert not ApiKey.objects.exclude(revoked_at=None).exists()


def add_node(client, **changes):
    data = {"name": "gpu-b", "dialect": "vllm", "base_url": "http://gpu-b:8000/", "weight": "2",
            "options": '{"continuation": "text", "template": "chatml"}', **SWITCHES}  # fmt: skip
    return submit(client, "inferencenode", "add", **{**data, **changes})


def test_a_node_is_added(admin_client):
    add_node(admin_client)
    added = InferenceNode.objects.get()
    assert (added.base_url, added.weight, added.source) == ("http://gpu-b:8000", 2.0, "admin")
    assert added.options == {"continuation": "text", "template": "chatml"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base_url": "gpu-b:8000"}, "not of the form"),
        ({"base_url": "javascript:alert(1)"}, "not of the form"),
        ({"base_url": "http://gpu-a:8000"}, "There is a node at this address already"),
        ({"name": "gpu-a"}, "already exists"),
        ({"weight": "0"}, "greater than or equal"),
        ({"options": '{"colour": "red"}'}, "unknown node option"),
        ({"options": "["}, "valid JSON"),
    ],
)
def test_a_node_that_cannot_be_is_not_added(admin_client, changes, words):
    node()
    assert words in add_node(admin_client, **changes).text
    assert InferenceNode.objects.count() == 1


def test_saving_a_node_leaves_alone_what_gateways_write(admin_client, monkeypatch):
    one = node()
    seen = InferenceNode.objects.get()
    InferenceNode.objects.update(health="up", models_served=["m"])
    # What the form was opened with is older than what is in the table now.
    monkeypatch.setattr(
        "streaming.admin.node.InferenceNodeAdmin.get_object", lambda *arguments: seen
    )
    submit(
        admin_client, "inferencenode", "change", one.pk,
        name="gpu-a", dialect="vllm", base_url="http://gpu-a:9000", weight="1", options="{}", **SWITCHES,
    )  # fmt: skip
    one.refresh_from_db()
    assert (one.base_url, one.health, one.models_served) == ("http://gpu-a:9000", "up", ["m"])


def test_a_node_of_the_environment_is_neither_renamed_nor_deleted(admin_client):
    one = node(source="environment")
    submit(admin_client, "inferencenode", "change", one.pk, name="other", weight="3", **SWITCHES)
    one.refresh_from_db()
    assert (one.name, one.weight) == ("gpu-a", 3.0)
    response = submit(admin_client, "inferencenode", "delete", one.pk, post="yes")
    assert response.status_code == 403
    submit(
        admin_client, "inferencenode", "changelist",
        action="delete_selected", _selected_action=[one.pk], post="yes",
    )  # fmt: skip
    assert InferenceNode.objects.exists()


def test_a_key_is_made_and_its_secret_shown_once(admin_client):
    tenant = Tenant.objects.create(name="acme")
    made = submit(
        admin_client, "apikey", "add",
        tenant=tenant.pk, name="web", is_test="on", on_disconnect="cancel", level="standard",
    )  # fmt: skip
    secret = re.search(r"ub-test-[\w-]{43}", html.unescape(made.text))[0]
    key = ApiKey.objects.get()
    assert key.key_hash == hashlib.sha256(secret.encode()).hexdigest()
    assert key.prefix == secret[:12]
    assert (key.name, key.is_test, key.on_disconnect) == ("web", True, "cancel")
    for name, arguments in (("changelist", []), ("change", [key.pk]), ("history", [key.pk])):
        page = admin_client.get(reverse(f"admin:streaming_apikey_{name}", args=arguments)).text
        assert secret not in page
        assert key.key_hash not in page


def test_a_key_cannot_be_made_to_expire_in_the_past(admin_client):
    tenant = Tenant.objects.create(name="acme")
    refused = submit(
        admin_client, "apikey", "add", tenant=tenant.pk, on_disconnect="cancel", level="standard",
        expires_at_0="2020-01-01", expires_at_1="00:00:00",
    )  # fmt: skip
    assert "in the past" in refused.text
    assert not ApiKey.objects.exists()


def test_a_key_is_changed_but_never_moved_nor_deleted(admin_client):
    key, _ = create_api_key(tenant_name="acme")
    other = Tenant.objects.create(name="other")
    submit(
        admin_client, "apikey", "change", key.pk,
        tenant=other.pk, is_test="on", name="new", on_disconnect="finish", level="economy",
    )  # fmt: skip
    before, key = key, ApiKey.objects.get()
    assert (key.name, key.on_disconnect) == ("new", "finish")
    assert (key.tenant, key.is_test, key.key_hash) == (before.tenant, False, before.key_hash)
    assert submit(admin_client, "apikey", "delete", key.pk, post="yes").status_code == 403


def test_keys_are_revoked_after_a_confirmation(admin_client):
    key, _ = create_api_key(tenant_name="acme")
    assert "for good" in act(admin_client, "apikey", "revoke", key, confirmed=False).text
    assert ApiKey.objects.get().revoked_at is None
    act(admin_client, "apikey", "revoke", key)
    assert ApiKey.objects.get().revoked_at is not None
    assert LogEntry.objects.get().change_message == "Revoked."


def test_a_tenant_keeps_its_name_and_cannot_be_deleted(admin_client):
    submit(admin_client, "tenant", "add", name="acme", display_name="Acme")
    tenant = Tenant.objects.get()
    submit(admin_client, "tenant", "change", tenant.pk, name="evil", display_name="Acme & Sons")
    tenant.refresh_from_db()
    assert (tenant.name, tenant.display_name) == ("acme", "Acme & Sons")
    assert submit(admin_client, "tenant", "delete", tenant.pk, post="yes").status_code == 403


def test_an_alias_exists_once_for_all_tenants(admin_client):
    for _ in range(2):
        submit(admin_client, "modelalias", "add", alias="chat-default", model="small")
    assert ModelAlias.objects.get().tenant is None
    assert "all tenants" in admin_client.get(reverse("admin:streaming_modelalias_changelist")).text
