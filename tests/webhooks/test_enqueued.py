"""What is written down for webhooks, and for whom."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from billing.services import accounts
from streaming.models import SessionEvent, StreamSession, WebhookDelivery
from streaming.services import webhooks
from tests.billing.lines import add_usage, settle
from tests.billing.rows import Story, add_tenant
from tests.webhooks.sending import BY, ended, hook, told

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("private")]

ANYWHERE = "https://hooks.example/in"


@pytest.mark.parametrize(
    ("state", "cause", "kind"),
    [
        ("completed", "", "session.completed"),
        ("stopped", "client_stop", "session.completed"),
        ("failed", "engine_crash", "session.interrupted"),
        ("abandoned", "abandoned", "session.interrupted"),
        ("cancelled", "client_gone", "session.interrupted"),
    ],
)
def test_an_end_is_told_as_what_it_is(state, cause, kind):
    hook(None, url=ANYWHERE)
    session = ended(state, cause, prompt=12, end_user="ann", request_id="r-1")
    assert told() == [(kind, session.pk)]
    payload = WebhookDelivery.objects.get().payload
    assert payload["type"] == kind
    assert payload["timestamp"].endswith("Z")
    data = payload["data"]
    assert (data["session_id"], data["reference"]) == (str(session.pk), session.reference)
    assert (data["state"], data["cause"]) == (state, cause or None)
    assert data["request_id"] == "r-1"
    assert data["usage"] == {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    assert data["ended_at"] is not None
    assert "ann" not in str(payload)


def test_each_is_told_once_however_often_it_happens():
    hook(None, url=ANYWHERE)
    story = Story()
    story.attempt()
    story.tokens(3)
    for _ in range(2):
        story.suspend()
        story.attempt()
    StreamSession.objects.filter(pk=story.session.pk).update(level="economy")
    story.end()
    key = story.session.pk
    assert told() == [("session.suspended", key), ("session.completed", key)]


def test_only_whoever_wants_to_know_is_told():
    others = add_tenant("others")
    hook(None, tenant=others, url=ANYWHERE)
    hook(None, "session.flagged", url=ANYWHERE)
    webhooks.switch(hook(None, url=ANYWHERE), on=False, by=BY)
    ended()
    assert told() == []
    wanted = hook(None, "session.completed", url=ANYWHERE)
    session = ended()
    assert WebhookDelivery.objects.get().endpoint == wanted
    assert told() == [("session.completed", session.pk)]


def test_what_did_not_happen_is_not_told():
    hook(None, url=ANYWHERE)
    with transaction.atomic():
        session = ended()
        assert told() == [("session.completed", session.pk)]
        transaction.set_rollback(True)
    assert told() == []


def test_what_a_content_rule_has_found_is_flagged_once():
    hook(None, url=ANYWHERE)
    story = Story()
    for seq, action in ((2, "mask"), (3, "flag"), (9, "stop")):
        SessionEvent.objects.create(
            session=story.session, at=timezone.now(), kind="filtered", seq=seq,
            data={"rule": "no names", "action": action, "count": 1},
        )  # fmt: skip
    assert told() == [("session.flagged", story.session.pk)]
    data = WebhookDelivery.objects.get().payload["data"]
    assert (data["rule"], data["action"], data["seq"]) == ("no names", "flag", 3)
    assert data["state"] == "streaming"


def test_what_others_tell_may_come_more_than_once():
    tenant = add_tenant()
    hook(None, url=ANYWHERE)
    for threshold in (80, 100):
        webhooks.enqueue(webhooks.Kind.LIMIT_NEAR, tenant.pk, {"threshold_percent": threshold})
    assert told() == [("limit.near", None), ("limit.near", None)]


def test_a_session_without_an_endpoint_costs_its_end_no_statement(django_assert_num_queries):
    story = Story()
    with django_assert_num_queries(1):
        StreamSession.objects.filter(pk=story.session.pk).update(
            state="completed", ended_at=timezone.now() + timedelta(seconds=1)
        )
    assert not WebhookDelivery.objects.exists()


def test_a_budget_that_nears_its_limit_is_told_with_its_figures():
    tenant = add_tenant()
    hook(None, url=ANYWHERE)
    accounts.change_account(tenant.pk, actor=BY, token_limit=100)
    settle(add_usage(tenant), 85, prompt=0)
    data = WebhookDelivery.objects.get(kind="limit.near").payload["data"]
    assert (data["measure"], data["threshold_percent"]) == ("tokens", 80)
    assert (data["limit"], data["used"]) == ("100", "85")
    settle(add_usage(tenant), 1, prompt=0)
    assert WebhookDelivery.objects.filter(kind="limit.near").count() == 1
