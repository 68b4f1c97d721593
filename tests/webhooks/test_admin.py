"""What staff of a tenant do with its webhooks: make, change, rotate, test, send again."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse

from streaming.models import TenantMember, WebhookDelivery, WebhookEndpoint
from streaming.services import webhooks
from tests.billing.rows import add_tenant
from tests.desk.staff import logged_in, member, told
from tests.webhooks.sending import ended, hook, run

pytestmark = pytest.mark.django_db

ANYWHERE = "https://hooks.example/in"


@pytest.fixture
def ours() -> Client:
    user = member("tess")
    user.groups.add(Group.objects.get(name="tenant_admin"))
    TenantMember.objects.create(user=user, tenant=add_tenant())
    return logged_in(user)


def send(client: Client, page: str, *arguments: Any, **data: Any) -> str:
    url = reverse(f"admin:streaming_{page}", args=arguments)
    response = client.post(url, data, follow=True)
    assert response.status_code == 200
    return response.content.decode()


def act(client: Client, table: str, action: str, row: Any) -> str:
    return send(
        client, f"{table}_changelist", action=action, _selected_action=[row.pk], confirmed="yes"
    )


def shown_secret(text: str) -> str:
    found = re.search(r"whsec_[A-Za-z0-9+/]+=*", text.replace("&#x3D;", "="))
    assert found
    return found[0]


def test_a_secret_is_shown_to_whoever_makes_it_and_never_again(ours):
    tenant = add_tenant()
    text = send(
        ours, "webhookendpoint_add", tenant=tenant.pk, url=ANYWHERE, events=["session.completed"]
    )
    endpoint = WebhookEndpoint.objects.get()
    assert (endpoint.url, endpoint.events) == (ANYWHERE, ["session.completed"])
    assert shown_secret(text) == webhooks.secret_of(endpoint)
    page = ours.get(reverse("admin:streaming_webhookendpoint_change", args=[endpoint.pk]))
    assert "whsec_" not in page.content.decode()
    text = act(ours, "webhookendpoint", "rotate", endpoint)
    endpoint.refresh_from_db()
    assert shown_secret(text) == webhooks.secret_of(endpoint)
    assert endpoint.secret_version == 2
    subject = f"webhook:{endpoint.pk}"
    assert told() == [
        ("webhook.create", "user:tess", subject),
        ("webhook.rotate", "user:tess", subject),
    ]


@pytest.mark.parametrize(
    "url",
    ["http://hooks.example/", "https://127.0.0.1/", "https://10.1.2.3/x", "https://u:p@x.example/"],
)
def test_an_address_inside_is_refused(ours, url):
    text = send(ours, "webhookendpoint_add", tenant=add_tenant().pk, url=url)
    assert "errorlist" in text
    assert not WebhookEndpoint.objects.exists()


def test_a_change_is_audited_and_tried_at_once(ours):
    endpoint = hook(None, url=ANYWHERE)
    WebhookEndpoint.objects.update(failing_since=endpoint.created_at, retry_at=endpoint.created_at)
    told()
    send(ours, "webhookendpoint_change", endpoint.pk, url=ANYWHERE + "/2", events=["limit.near"])
    endpoint.refresh_from_db()
    assert (endpoint.url, endpoint.events) == (ANYWHERE + "/2", ["limit.near"])
    assert (endpoint.failing_since, endpoint.retry_at) == (None, None)
    assert [action for action, _, _ in told()] == ["webhook.change"]


@pytest.mark.usefixtures("private", "patient")
def test_a_test_message_and_one_that_is_sent_again(ours, receiver):
    endpoint = hook(receiver, "limit.near")
    ended()
    text = act(ours, "webhookendpoint", "send_test", endpoint)
    assert "Has a test message to come" in text
    assert run() == (1, 0, 0)
    (received,) = receiver.received
    assert received.json["type"] == "test"
    delivery = WebhookDelivery.objects.get()
    listed = ours.get(reverse("admin:streaming_webhookdelivery_changelist")).content.decode()
    assert str(delivery.pk) in listed
    act(ours, "webhookdelivery", "send_again", delivery)
    assert run() == (1, 0, 0)
    assert receiver.received[1].headers["webhook-id"] == str(delivery.pk)
    act(ours, "webhookendpoint", "switch_off", endpoint)
    assert "switched off" in act(ours, "webhookendpoint", "send_test", endpoint)
    act(ours, "webhookendpoint", "switch_on", endpoint)
    assert [action for action, _, _ in told()] == [
        "webhook.create", "webhook.test", "webhook.send_again", "webhook.disable", "webhook.enable",
    ]  # fmt: skip


def test_others_webhooks_are_out_of_reach(ours):
    theirs = hook(None, tenant=add_tenant("others"), url=ANYWHERE)
    url = reverse("admin:streaming_webhookendpoint_change", args=[theirs.pk])
    assert ours.get(url).status_code == 404
    act(ours, "webhookendpoint", "rotate", theirs)
    theirs.refresh_from_db()
    assert theirs.secret_version == 1
    text = send(ours, "webhookendpoint_add", tenant=theirs.tenant_id, url=ANYWHERE)
    assert "errorlist" in text
