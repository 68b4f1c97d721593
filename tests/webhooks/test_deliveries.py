"""Messages on their way to a real receiver: signed, again and again, and given up."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.utils import timezone

from streaming.models import Incident, OutboxMessage, WebhookDelivery, WebhookEndpoint
from streaming.services import webhook_deliveries, webhooks
from streaming.services.refused import Refused
from streaming.services.webhook_deliveries import DISABLE, GIVE_UP, LONGEST_PAUSE
from tests.billing.events.receiver import Receiver
from tests.billing.rows import add_tenant
from tests.webhooks.sending import BY, ended, hook, run, sooner

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("private", "patient")]


def actions() -> list[str]:
    messages = OutboxMessage.objects.filter(kind="audit").order_by("id")
    return [said["action"] for said in messages.values_list("data", flat=True)]


def test_the_end_of_a_session_becomes_a_signed_message(receiver):
    endpoint = hook(receiver)
    session = ended(end_user="ännchen")
    assert run() == (1, 0, 0)
    (received,) = receiver.received
    delivery = WebhookDelivery.objects.get()
    assert received.headers["webhook-id"] == str(delivery.pk)
    assert received.headers["content-type"] == "application/json"
    assert abs(int(received.headers["webhook-timestamp"]) - timezone.now().timestamp()) < 60
    assert received.is_signed_with(webhooks.secret_of(endpoint))
    assert not received.is_signed_with("whsec_" + "A" * 44)
    message = received.json
    assert (message["type"], message["data"]["session_id"]) == (
        "session.completed",
        str(session.pk),
    )
    assert message["data"]["user"] == "ännchen"
    assert (delivery.state, delivery.tries, delivery.response_status) == ("delivered", 1, 200)
    assert run() == (0, 0, 0)


def test_an_endpoint_that_is_down_is_left_alone_and_asked_with_one_message(receiver):
    endpoint = hook(receiver)
    for _ in range(3):
        ended()
    receiver.decide = lambda received: 500
    delivered, unsuccessful, _ = run()
    assert (delivered, unsuccessful > 0) == (0, True)
    endpoint.refresh_from_db()
    assert endpoint.retry_at > timezone.now()
    before = len(receiver.received)
    WebhookEndpoint.objects.update(retry_at=timezone.now() + timedelta(hours=1))
    assert run() == (0, 0, 0)
    assert len(receiver.received) == before
    receiver.decide = None
    sooner()
    assert run() == (1, 0, 0)  # one message, to see whether it is back
    assert run() == (2, 0, 0)
    endpoint.refresh_from_db()
    assert (endpoint.failing_since, endpoint.retry_at) == (None, None)


@pytest.mark.parametrize("status", [302, 401, 404, 429, 503])
def test_what_is_about_the_endpoint_makes_all_its_messages_wait(receiver, status):
    endpoint = hook(receiver)
    ended()
    receiver.answer(status, location=receiver.url, retry_after="3600")
    assert run() == (0, 1, 0)
    assert len(receiver.received) == 1  # no redirect is followed
    endpoint.refresh_from_db()
    assert endpoint.retry_at - timezone.now() > timedelta(seconds=3500)


def test_a_message_that_is_refused_holds_up_no_other(receiver):
    hook(receiver)
    bad, _ = ended(), ended()
    receiver.decide = lambda received: 400 if str(bad.pk) in received.body.decode() else 200
    assert run() == (1, 1, 0)
    assert WebhookDelivery.objects.get(state="waiting").next_try_at > timezone.now()
    assert not WebhookEndpoint.objects.filter(failing_since__isnull=False).exists()


def test_a_slow_receiver_holds_up_no_other(receiver, monkeypatch):
    monkeypatch.setattr(webhook_deliveries, "ANSWER_SECONDS", 3.0)
    with Receiver() as slow:
        slow.hold = threading.Event()
        hook(slow)
        hook(receiver, tenant=add_tenant("others"))
        for _ in range(6):
            ended()
        quick = [ended(tenant=add_tenant("others")) for _ in range(6)]
        delivered, unsuccessful, _ = run()
    assert delivered == len(receiver.received) == len(quick)
    assert unsuccessful >= 1
    late = WebhookDelivery.objects.filter(tries__gt=0, state="waiting")
    assert {one.error for one in late} == {"no answer within 3 s"}
    assert WebhookEndpoint.objects.filter(failing_since__isnull=False).count() == 1


def test_a_long_answer_is_read_no_further_than_its_beginning(receiver):
    hook(receiver)
    ended()
    receiver.answer(500, "it\x00 is\nlate " + "x" * 5_000_000)
    assert run() == (0, 1, 0)
    delivery = WebhookDelivery.objects.get()
    assert delivery.error.startswith("it\ufffd is late xxx")
    assert len(delivery.error) <= 300


def test_who_is_gone_is_switched_off(receiver):
    endpoint = hook(receiver)
    ended()
    receiver.answer(410)
    assert run() == (0, 1, 0)
    endpoint.refresh_from_db()
    assert (endpoint.is_active, endpoint.disabled_reason) == (False, "it answered 410 Gone")
    open_ones = Incident.objects.filter(kind=webhooks.FAILED, closed_at=None)
    assert open_ones.get().subject == f"webhook:{endpoint.pk}"
    assert "webhook.disable" in actions()
    sooner()
    assert run() == (0, 0, 0)
    webhooks.switch(endpoint, on=True, by=BY)
    assert not open_ones.exists()
    assert run() == (1, 0, 0)


def test_what_waits_for_a_day_is_given_up_and_a_dead_endpoint_switched_off(receiver):
    endpoint = hook(receiver)
    ended()
    receiver.decide = lambda received: 503
    assert run() == (0, 1, 0)
    now = timezone.now()
    WebhookDelivery.objects.update(created_at=now - GIVE_UP - timedelta(minutes=1))
    sooner()
    assert run() == (0, 0, 1)
    assert WebhookDelivery.objects.get().state == "given_up"
    assert Incident.objects.get(kind=webhooks.FAILED).closed_at is None
    ended()
    WebhookEndpoint.objects.update(failing_since=now - DISABLE - timedelta(minutes=1))
    assert run() == (0, 1, 0)
    endpoint.refresh_from_db()
    assert not endpoint.is_active
    assert "3 days" in endpoint.disabled_reason
    receiver.decide = None
    webhooks.switch(endpoint, on=True, by=BY)
    given_up = WebhookDelivery.objects.get(state="given_up")
    webhooks.send_again(given_up, by=BY)
    assert run() == (2, 0, 0)
    assert receiver.received[-1].headers["webhook-id"] in {
        str(one) for one in WebhookDelivery.objects.values_list("pk", flat=True)
    }


def test_a_rotated_secret_signs_beside_the_former_one_for_a_day(receiver):
    endpoint = hook(receiver)
    former = webhooks.secret_of(endpoint)
    new = webhooks.rotate(endpoint, by=BY)
    assert new != former
    ended()
    run()
    (received,) = receiver.received
    assert received.is_signed_with(new)
    assert received.is_signed_with(former)
    with pytest.raises(Refused, match="it has a new secret already"):
        webhooks.rotate(endpoint, by=BY)
    endpoint.refresh_from_db()
    assert (endpoint.secret_version, webhooks.secret_of(endpoint)) == (2, new)
    WebhookEndpoint.objects.update(rotated_at=timezone.now() - webhooks.OVERLAP)
    ended()
    run()
    assert receiver.received[1].is_signed_with(new)
    assert not receiver.received[1].is_signed_with(former)
    assert "whsec_" not in str(list(OutboxMessage.objects.values_list("data", flat=True)))


def test_a_former_secret_can_be_ended_at_once(receiver):
    endpoint = hook(receiver)
    with pytest.raises(Refused, match="no former secret"):
        webhooks.end_former_secret(endpoint, by=BY)
    leaked = webhooks.secret_of(endpoint)
    new = webhooks.rotate(endpoint, by=BY)
    webhooks.end_former_secret(endpoint, by=BY)
    ended()
    run()
    (received,) = receiver.received
    assert received.is_signed_with(new)
    assert not received.is_signed_with(leaked)
    assert actions()[-2:] == ["webhook.rotate", "webhook.end_former_secret"]
    assert webhooks.rotate(endpoint, by=BY) != new


def test_private_addresses_are_not_asked_unless_that_is_allowed(receiver, settings):
    hook(receiver)
    ended()
    settings.STREAMING = type(settings.STREAMING)()
    assert run() == (0, 1, 0)
    assert receiver.received == []
    assert "https://" in WebhookDelivery.objects.get().error
    WebhookEndpoint.objects.update(url=f"https://localhost:{receiver.port}/", retry_at=None)
    assert run() == (0, 1, 0)
    assert receiver.received == []
    assert "public addresses" in WebhookDelivery.objects.get().error


def test_what_was_told_long_ago_is_forgotten(receiver):
    hook(receiver)
    ended()
    old = WebhookDelivery.objects.get()
    ended()
    run()
    assert webhook_deliveries.forget_deliveries() == {"forgotten": 0, "more": False}
    long_ago = timezone.now() - webhook_deliveries.KEEP - timedelta(minutes=1)
    WebhookDelivery.objects.filter(pk=old.pk).update(created_at=long_ago)
    assert webhook_deliveries.forget_deliveries()["forgotten"] == 1
    assert WebhookDelivery.objects.count() == 1


def test_pauses_grow_to_hours():
    known = [webhook_deliveries.pause(timedelta(seconds=s), 0.5) for s in (0, 5, 60, 10**6)]
    assert known == [
        timedelta(seconds=5),
        timedelta(seconds=5),
        timedelta(minutes=1),
        LONGEST_PAUSE,
    ]
    tries = [webhook_deliveries.message_pause(tries, 0.5) for tries in range(12)]
    assert tries == sorted(tries)
    assert (tries[0], tries[-1]) == (timedelta(seconds=5), LONGEST_PAUSE)
    first, last = (webhook_deliveries.pause(timedelta(0), jitter) for jitter in (0.0, 1.0))
    assert first < last
