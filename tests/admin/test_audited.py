"""What staff do in the admin is announced to the audit log, with who did it; never any content."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streaming.admin.tenant import LIMITS
from streaming.models import ApiKey, InferenceNode, ModelAlias, ModelPolicy, OutboxMessage, Tenant
from streaming.services.api_keys import create_api_key
from tests.admin.test_operations import SWITCHES, act, node, submit

pytestmark = pytest.mark.django_db


def announced() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Action, actor, subject and data of what was announced since it was asked last."""
    messages = OutboxMessage.objects.filter(kind="audit").order_by("id")
    found = [
        (said["action"], said["actor"], said["subject"], said["data"])
        for said in messages.values_list("data", flat=True)
    ]
    messages.delete()
    return found


def test_what_is_done_to_keys_is_announced(admin_client):
    tenant = Tenant.objects.create(name="acme")
    submit(
        admin_client, "apikey", "add", tenant=tenant.pk, name="Pat's laptop", on_disconnect="cancel",
        level="standard", requests_per_minute="60",
    )  # fmt: skip
    key = ApiKey.objects.get()
    changed = {"name": "other", "on_disconnect": "finish", "cost_centre": "R&D", "level": "economy"}
    submit(admin_client, "apikey", "change", key.pk, **changed)
    submit(admin_client, "apikey", "change", key.pk, **changed)  # nothing new
    act(admin_client, "apikey", "revoke", key)
    act(admin_client, "apikey", "revoke", key)  # it was, before
    subject = f"key:{key.prefix}"
    created, change, revoked = announced()
    assert created[:3] == ("key.create", "user:admin", subject)
    assert created[3] == {
        "id": key.pk, "is_test": False, "on_disconnect": "cancel", "expires_at": None,
        "level": "standard", "requests_per_minute": 60,
    }  # fmt: skip
    assert change[:3] == ("key.change", "user:admin", subject)
    assert change[3] == {
        "columns": "cost_centre, level, name, on_disconnect, requests_per_minute",
        "cost_centre": " → R&D", "on_disconnect": "cancel → finish", "level": "standard → economy",
        "requests_per_minute": "60 → None",
    }  # fmt: skip
    assert revoked == ("key.revoke", "user:admin", subject, {"id": key.pk})


def test_what_is_done_to_nodes_is_announced(admin_client):
    one = node()
    announced()
    act(admin_client, "inferencenode", "drain", one)
    act(admin_client, "inferencenode", "resume", one)
    submit(
        admin_client, "inferencenode", "change", one.pk,
        name="gpu-b", dialect="vllm", base_url="http://gpu-b:8000", weight="2.5", options="{}",
        **{**SWITCHES, "failover": "off"},
    )  # fmt: skip
    one = InferenceNode.objects.get()
    submit(admin_client, "inferencenode", "delete", one.pk, post="yes")
    submit(
        admin_client, "inferencenode", "add",
        name="gpu-c", dialect="vllm", base_url="http://gpu-c:8000", weight="1", options="{}",
        **SWITCHES,
    )  # fmt: skip
    drained, resumed, changed, removed, added = announced()
    assert drained == ("node.drain", "user:admin", "node:gpu-a", {})
    assert resumed == ("node.resume", "user:admin", "node:gpu-a", {})
    assert changed[:3] == ("node.change", "user:admin", "node:gpu-b")
    assert changed[3]["weight"] == "1.0 → 2.5"
    assert changed[3]["name"] == "gpu-a → gpu-b"
    assert changed[3]["failover"] == "on → off"
    assert removed == ("node.remove", "user:admin", "node:gpu-b", {})
    assert added[:3] == ("node.add", "user:admin", "node:gpu-c")


def test_what_is_done_to_policies_is_announced(admin_client):
    submit(admin_client, "modelpolicy", "add", model="m", **SWITCHES)
    policy = ModelPolicy.objects.get()
    announced()
    asked = {"model": "m", **SWITCHES, "defragment": "dry_run"}
    submit(admin_client, "modelpolicy", "change", policy.pk, **asked)
    submit(admin_client, "modelpolicy", "delete", policy.pk, post="yes")
    assert announced() == [
        (
            "model.switch", "user:admin", "model:m",
            {"switch": "defragment", "was": "on", "now": "dry_run"},
        ),
        ("model.policy_removed", "user:admin", "model:m", {}),
    ]  # fmt: skip


def test_what_is_done_to_tenants_and_aliases_is_announced(admin_client):
    submit(admin_client, "tenant", "add", name="acme", display_name="Pat Smith")
    tenant = Tenant.objects.get()
    submit(
        admin_client, "tenant", "change", tenant.pk, display_name="Pat Jones", content_days="7", user_requests_per_minute="20",
    )  # fmt: skip
    submit(admin_client, "modelalias", "add", alias="chat", model="small", tenant=tenant.pk)
    alias = ModelAlias.objects.get()
    submit(
        admin_client, "modelalias", "change", alias.pk,
        alias="chat", model="large", tenant=tenant.pk,
    )  # fmt: skip
    act(admin_client, "modelalias", "delete_selected", alias)
    submit(
        admin_client, "modelalias", "changelist",
        action="delete_selected", _selected_action=[alias.pk], post="yes",
    )  # fmt: skip
    found = announced()
    assert not ModelAlias.objects.exists()
    assert found == [
        (
            "tenant.create", "user:admin", "tenant:acme",
            {
                "content_days": None, "metadata_days": None, "support_sees_content": False,
                "allowed_origins": "[]", **dict.fromkeys(LIMITS),
            },
        ),
        (
            "tenant.change", "user:admin", "tenant:acme",
            {
                "columns": "content_days, display_name, user_requests_per_minute",
                "content_days": "None → 7", "user_requests_per_minute": "None → 20",
            },
        ),
        ("alias.create", "user:admin", "alias:chat", {"model": "small"}),
        (
            "alias.change", "user:admin", "alias:chat",
            {"columns": "model", "model": "small → large"},
        ),
        ("alias.remove", "user:admin", "alias:chat", {}),
    ]  # fmt: skip
    assert "Smith" not in json.dumps(found)


def test_a_form_that_cannot_be_announced_is_not_saved(admin_client, monkeypatch):
    def fail(*arguments: Any, **data: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr("streaming.admin.audited.audit.announce", fail)
    with pytest.raises(ConnectionError):
        submit(admin_client, "tenant", "add", name="acme")
    assert not Tenant.objects.exists()


def test_who_makes_a_key_for_a_new_tenant_has_made_both():
    key, _ = create_api_key(tenant_name="acme", by="command:pat")
    assert [entry[:3] for entry in announced()] == [
        ("tenant.create", "command:pat", "tenant:acme"),
        ("key.create", "command:pat", f"key:{key.prefix}"),
    ]
