"""Usage events on their way to a real receiver: signed, once or more, in order, and given up."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest
from django.utils import timezone

from billing.models import AuditEntry, EventDelivery, UsageSink
from billing.services import deliveries, sinks, usage_events
from billing.services.deliveries import EVENT_TRIES, GIVE_UP
from streaming.models import Incident
from tests.billing.events.sending import hook, run, sooner
from tests.billing.lines import add_usage, settle
from tests.billing.rows import add_tenant

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("private", "patient")]


def test_a_settlement_becomes_a_signed_cloud_event(receiver):
    tenant = add_tenant("acme")
    sink = hook(receiver)
    usage = add_usage(tenant)
    line = settle(usage, 10, prompt=7, amount="0.000017500000000000", cost_centre="R&D")
    assert run() == (1, 0, 0)
    (received,) = receiver.received
    event = received.json
    assert event["specversion"] == "1.0"
    assert event["id"] == received.headers["webhook-id"] == f"{usage.pk}:1"
    assert (event["source"], event["type"]) == ("/unbroken", "ai.unbroken.usage.settled")
    assert (event["subject"], event["datacontenttype"]) == ("acme", "application/json")
    assert event["time"].endswith("Z")
    data = event["data"]
    assert (data["input_tokens"], data["output_tokens"], data["total_tokens"]) == (7, 10, 17)
    assert (data["amount"], data["currency"], data["corrects"]) == ("0.0000175", "EUR", None)
    assert (data["settlement"], data["cost_centre"]) == (line.pk, "R&D")
    assert not any(isinstance(value, float) for value in data.values())
    assert received.headers["content-type"].startswith("application/cloudevents+json")
    assert received.is_signed_with(sinks.secret_of(sink))
    assert not received.is_signed_with("whsec_" + "A" * 44)
    delivery = EventDelivery.objects.get()
    assert (delivery.state, delivery.tries) == ("delivered", 1)
    assert run() == (0, 0, 0)


def test_what_is_given_back_is_negative_and_names_what_it_corrects(receiver):
    hook(receiver)
    usage = add_usage()
    first = settle(usage, 10, prompt=7)
    settle(usage, -10, prompt=-7, corrects=first)
    run()
    data = receiver.received[1].json["data"]
    assert (data["input_tokens"], data["output_tokens"], data["amount"]) == (-7, -10, "-17")
    assert data["corrects"] == receiver.ids[0] == f"{usage.pk}:1"


def test_each_sink_hears_of_its_own_tenant(receiver):
    ours, others = add_tenant("ours"), add_tenant("others")
    hook(receiver, "all")
    hook(receiver, "mine", tenant_name="ours")
    sinks.switch_sink(hook(receiver, "off"), enabled=False, actor="user:pat")
    for tenant in (ours, others):
        settle(add_usage(tenant))
    told = EventDelivery.objects.values_list("sink__name", "body")
    assert sorted((name, json.loads(body)["subject"]) for name, body in told) == [
        ("all", "others"), ("all", "ours"), ("mine", "ours"),
    ]  # fmt: skip


def test_without_a_sink_a_settlement_costs_one_look(django_assert_num_queries):
    usage = add_usage()
    line = settle(usage)
    with django_assert_num_queries(1):
        usage_events.announce(line, usage)
    assert not EventDelivery.objects.exists()


def test_a_sink_that_is_down_is_left_alone_and_asked_with_one_event(receiver):
    sink = hook(receiver)
    for _ in range(3):
        settle(add_usage())
    receiver.answer(500, "it\x00 is\nlate " + "x" * 5000)
    receiver.answer(500)
    receiver.answer(500)
    delivered, unsuccessful, _ = run()
    assert (delivered, unsuccessful > 0) == (0, True)
    # They are of different sessions, so any of them may have got the first answer.
    assert {one.state for one in EventDelivery.objects.all()} == {"pending"}
    (said,) = EventDelivery.objects.filter(answered__contains="late").values_list(
        "answered", flat=True
    )
    assert said.startswith("500 it\ufffd is late xxx")
    assert len(said) <= 300
    sink.refresh_from_db()
    assert sink.retry_at > timezone.now()
    before = len(receiver.received)
    UsageSink.objects.update(retry_at=timezone.now() + timedelta(hours=1))
    assert run() == (0, 0, 0)  # it is left alone
    assert len(receiver.received) == before
    receiver.answers.clear()
    sooner()
    assert run() == (1, 0, 0)  # one event, to see whether it is back
    assert run() == (2, 0, 0)
    assert len(set(receiver.ids)) == 3
    sink.refresh_from_db()
    assert (sink.failing_since, sink.retry_at) == (None, None)


@pytest.mark.parametrize("status", [301, 302, 401, 403, 404, 408, 429, 503])
def test_what_is_about_the_sink_makes_all_its_events_wait(receiver, status):
    sink = hook(receiver)
    settle(add_usage())
    receiver.answer(status, location=receiver.url, retry_after="7200")
    assert run() == (0, 1, 0)
    assert len(receiver.received) == 1  # no redirect is followed
    sink.refresh_from_db()
    assert sink.retry_at - timezone.now() > timedelta(seconds=7000)
    assert EventDelivery.objects.get().state == "pending"


def test_an_event_that_is_refused_holds_up_nobody_and_is_given_up_in_the_end(receiver):
    hook(receiver)
    bad, good = add_usage(), add_usage()
    settle(bad)
    settle(good)
    receiver.decide = lambda received: 400 if str(bad.pk) in received.json["id"] else 200
    assert run() == (1, 1, 0)
    refused = EventDelivery.objects.get(state="pending")
    assert refused.next_at > timezone.now()
    EventDelivery.objects.update(next_at=timezone.now() + timedelta(hours=1))
    assert run() == (0, 0, 0)
    for tries in range(2, EVENT_TRIES + 1):
        sooner()
        assert run() == (0, 1, int(tries == EVENT_TRIES))
    refused.refresh_from_db()
    assert (refused.state, refused.tries) == ("failed", EVENT_TRIES)
    incident = Incident.objects.get(kind=usage_events.FAILED)
    assert (incident.subject, incident.data["events"]) == ("hook", 1)
    receiver.decide = None
    assert usage_events.replay_failed(UsageSink.objects.get()) == 1
    incident.refresh_from_db()
    assert incident.closed_at is not None
    assert run() == (1, 0, 0)


def test_the_events_of_a_session_come_in_order(receiver):
    hook(receiver)
    usages = [add_usage() for _ in range(3)]
    for _ in range(4):
        for usage in usages:
            settle(usage, 1)
    assert run() == (12, 0, 0)
    for usage in usages:
        ours = [one for one in receiver.ids if one.startswith(str(usage.pk))]
        assert ours == [f"{usage.pk}:{n}" for n in (1, 2, 3, 4)]


def test_later_events_wait_for_one_that_failed(receiver):
    hook(receiver)
    usage = add_usage()
    for _ in range(3):
        settle(usage, 1)
    receiver.answer(422)
    assert run() == (0, 1, 0)
    assert receiver.ids == [f"{usage.pk}:1"]


def test_nobody_answers_in_time(receiver, monkeypatch):
    monkeypatch.setattr(deliveries, "ANSWER_SECONDS", 0.3)
    hook(receiver)
    settle(add_usage())
    receiver.hold = threading.Event()
    assert run() == (0, 1, 0)
    assert EventDelivery.objects.get().answered == "no answer within 0.3 s"
    receiver.hold.set()
    sooner()
    assert run() == (1, 0, 0)
    assert len(set(receiver.ids)) == 1


def test_nobody_is_there(receiver):
    hook(receiver, url="http://127.0.0.1:9/")
    settle(add_usage())
    assert run() == (0, 1, 0)
    assert "ConnectorError" in EventDelivery.objects.get().answered


def test_who_is_gone_is_switched_off(receiver):
    sink = hook(receiver)
    settle(add_usage())
    receiver.answer(410)
    assert run() == (0, 1, 0)
    sink.refresh_from_db()
    assert not sink.enabled
    assert Incident.objects.filter(kind=usage_events.FAILED, closed_at=None).exists()
    assert AuditEntry.objects.filter(action="usage_sink.disable", actor="system").exists()
    sooner()
    assert run() == (0, 0, 0)
    sinks.switch_sink(sink, enabled=True, actor="user:pat")
    assert not Incident.objects.filter(kind=usage_events.FAILED, closed_at=None).exists()
    assert run() == (1, 0, 0)


def test_what_waits_for_days_for_a_dead_sink_is_given_up(receiver):
    sink = hook(receiver)
    settle(add_usage())
    long_ago = timezone.now() - GIVE_UP - timedelta(minutes=1)
    EventDelivery.objects.update(created_at=long_ago)
    assert UsageSink.objects.update(failing_since=long_ago, retry_at=timezone.now()) == 1
    settle(add_usage())
    assert run() == (1, 0, 1)  # the young one is still tried
    assert EventDelivery.objects.filter(state="failed").count() == 1
    assert Incident.objects.get(kind=usage_events.FAILED).subject == sink.name


def test_a_dead_sink_gets_a_replay_all_the_same(receiver):
    sink = hook(receiver)
    line = settle(add_usage())
    long_ago = timezone.now() - GIVE_UP - timedelta(minutes=1)
    EventDelivery.objects.update(created_at=long_ago)
    UsageSink.objects.update(failing_since=long_ago, retry_at=timezone.now() + GIVE_UP)
    assert run() == (0, 0, 1)
    sink.refresh_from_db()
    assert usage_events.replay(sink, from_settlement=line.pk) == 1
    assert run() == (1, 0, 0)


def test_what_was_delivered_long_ago_is_forgotten(receiver):
    hook(receiver)
    for _ in range(3):
        settle(add_usage())
    receiver.answer(400)
    run()
    old = EventDelivery.objects.filter(state="delivered").first()
    EventDelivery.objects.exclude(state="delivered").update(state="failed")
    assert deliveries.forget_delivered() == {"forgotten": 0, "more": False}
    long_ago = timezone.now() - deliveries.KEEP - timedelta(minutes=1)
    EventDelivery.objects.filter(pk=old.pk).update(delivered_at=long_ago)
    assert deliveries.forget_delivered()["forgotten"] == 1
    assert EventDelivery.objects.count() == 2


def test_pauses_grow_to_a_day():
    known = [deliveries.pause(timedelta(seconds=s), 0.5) for s in (0, 5, 60, 3600, 10**6)]
    assert known == [timedelta(seconds=s) for s in (5, 5, 60, 3600, 86400)]
    tries = [deliveries.event_pause(tries, 0.5) for tries in range(EVENT_TRIES)]
    assert tries == sorted(tries)
    assert (tries[0], tries[-1]) == (timedelta(seconds=5), timedelta(days=1))
    for jitter in (0.0, 1.0):
        assert timedelta(seconds=3) < deliveries.pause(timedelta(0), jitter) < timedelta(seconds=7)
        assert deliveries.pause(timedelta(days=9), jitter) <= timedelta(days=1)


def test_a_rotated_secret_signs_beside_the_former_one(receiver):
    sink = hook(receiver)
    former = sinks.secret_of(sink)
    new = sinks.rotate(sink, actor="user:pat")
    assert new != former
    settle(add_usage())
    run()
    (received,) = receiver.received
    assert received.is_signed_with(new)
    assert received.is_signed_with(former)
    newest = sinks.rotate(sink, actor="user:pat")
    settle(add_usage())
    run()
    assert receiver.received[1].is_signed_with(newest)
    assert not receiver.received[1].is_signed_with(former)
    audited = AuditEntry.objects.filter(action="usage_sink.rotate")
    assert audited.count() == 2
    assert "whsec_" not in "".join(entry.data for entry in audited)


def test_a_credential_is_a_bearer_and_stays_out_of_sight(receiver, monkeypatch):
    monkeypatch.setenv("METER_KEY", "om-secret-1")
    hook(receiver, kind="openmeter", credential="env:METER_KEY")
    settle(add_usage())
    receiver.answer(500, "your key om-secret-1 is not welcome")
    run()
    assert receiver.received[0].headers["authorization"] == "Bearer om-secret-1"
    assert EventDelivery.objects.get().answered == "500 your key [credential] is not welcome"
    monkeypatch.delenv("METER_KEY")
    sooner()
    assert run() == (0, 1, 0)
    assert "METER_KEY" in EventDelivery.objects.get().answered
    assert len(receiver.received) == 1


def test_lago(receiver, monkeypatch):
    monkeypatch.setenv("LAGO_KEY", "k")
    hook(receiver, kind="lago", credential="env:LAGO_KEY", options={"code": "llm"})
    usage = add_usage(add_tenant("acme"))
    line = settle(usage, 10)
    settle(usage, -3)
    receiver.answer(200)
    receiver.answer(422, '{"error_details": {"transaction_id": ["value_already_exist"]}}')
    assert run() == (2, 0, 0)  # it had the second one already
    event = receiver.received[0].json["event"]
    assert event["transaction_id"] == f"{usage.pk}:1"
    assert (event["external_subscription_id"], event["code"]) == ("acme", "llm")
    assert event["timestamp"] == int(line.occurred_at.timestamp())
    assert event["properties"]["total_tokens"] == 10
    assert receiver.received[1].json["event"]["properties"]["total_tokens"] == -3


def test_stripe(receiver, monkeypatch):
    monkeypatch.setenv("STRIPE_KEY", "sk_test")
    add_tenant("acme")
    hook(
        receiver, kind="stripe", credential="env:STRIPE_KEY", tenant_name="acme",
        options={"event_name": "tokens", "value": "output_tokens", "customer": "cus_1"},
    )  # fmt: skip
    usage = add_usage()
    line = settle(usage, 10, prompt=5)
    settle(usage, -3, prompt=0)
    assert run() == (1, 1, 1)
    (received,) = receiver.received
    assert received.form == {
        "event_name": "tokens",
        "identifier": f"{usage.pk}:1",
        "timestamp": str(int(line.occurred_at.timestamp())),
        "payload[stripe_customer_id]": "cus_1",
        "payload[value]": "10",
    }
    assert received.headers["authorization"] == "Bearer sk_test"
    negative = EventDelivery.objects.get(state="failed")
    assert negative.answered.startswith("Stripe takes no negative usage (-3)")
    assert Incident.objects.filter(kind=usage_events.FAILED).exists()


def test_a_replay_sends_the_same_again(receiver):
    tenant = add_tenant("acme")
    sink = hook(receiver, tenant_name="acme")
    lines = [settle(add_usage(tenant)) for _ in range(3)]
    settle(add_usage(add_tenant("others")))
    run()
    late = hook(receiver, "late")
    assert usage_events.replay(late, from_settlement=lines[1].pk) == 3
    assert usage_events.replay(sink, period_name=lines[0].period.name) == 3
    assert usage_events.replay(sink, period_name="1999-01") == 0
    first = {one.json["id"]: one.body for one in receiver.received}
    receiver.received.clear()
    run()
    assert len(receiver.received) == 6
    assert all(first.get(one.json["id"], one.body) == one.body for one in receiver.received)
