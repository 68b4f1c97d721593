"""``manage.py usage_sink``: what it does, says and refuses."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from billing.models import AuditEntry, EventDelivery, UsageSink
from billing.services import sinks
from tests.billing.lines import add_usage, settle
from tests.billing.rows import add_tenant

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("private", "patient")]


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("usage_sink", *arguments, stdout=out)
    return out.getvalue()


def test_a_webhook_from_its_beginning_to_its_end(receiver):
    add_tenant("acme")
    said = run("add", "hook", receiver.url, "--tenant", "acme")
    secret = said.split()[-1]
    assert secret == sinks.secret_of(UsageSink.objects.get())
    assert run("secret", "hook").strip() == secret
    assert "has taken it: 200" in run("test", "hook")
    assert receiver.received[0].json["type"] == "ai.unbroken.test"
    assert receiver.received[0].is_signed_with(secret)
    assert run("rotate", "hook").split()[6] != secret
    assert "ok" in run("list")
    receiver.answer(503, "not today")
    with pytest.raises(CommandError, match="503 not today"):
        run("test", "hook")
    assert "failing since" in run("list")
    run("set", "hook", "--url", receiver.url + "/new")
    assert "ok" in run("list")
    run("disable", "hook")
    assert "disabled" in run("list")
    settle(add_usage())
    assert not EventDelivery.objects.filter(type="ai.unbroken.usage.settled").exists()
    run("enable", "hook")
    assert "1 events wait" in run("replay", "hook", "--from", "0")
    actions = AuditEntry.objects.order_by("seq").values_list("action", flat=True)
    assert list(actions) == [
        f"usage_sink.{what}" for what in ("add", "rotate", "change", "disable", "enable")
    ]
    assert {entry.actor.partition(":")[0] for entry in AuditEntry.objects.all()} == {"command"}


def test_a_collector(monkeypatch):
    add_tenant("acme")
    run(
        "add", "meter", "https://stripe.example/v1/billing/meter_events", "--kind", "stripe",
        "--tenant", "acme", "--credential", "env:STRIPE_KEY", "--option", "customer=cus_1",
    )  # fmt: skip
    run("set", "meter", "--option", "value=input_tokens", "--credential", "file:/run/stripe")
    sink = UsageSink.objects.get()
    assert sink.options == {"customer": "cus_1", "value": "input_tokens"}
    assert sink.credential == "file:/run/stripe"
    data = json.loads(AuditEntry.objects.get(action="usage_sink.change").data)
    assert data["options"] == sink.options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "x", "ftp://a"], "URL"),
        (["add", "x", "https://u:p@a.example"], "neither user nor password"),
        (["add", "x", "https://a.example", "--tenant", "nobody"], "no tenant 'nobody'"),
        (["add", "x", "https://a.example", "--kind", "lago"], "needs a credential"),
        (["add", "x", "https://a.example", "--credential", "sk_live_1"], "never the secret itself"),
        (["add", "x", "https://a.example", "--option", "a"], "NAME=VALUE"),
        (["add", "x", "https://a.example", "--option", "a=b"], "no option 'a'"),
        (
            ["add", "x", "https://a.example", "--kind", "stripe", "--credential", "env:K",
             "--option", "customer=c"],
            "one tenant",
        ),
        (["test", "nobody"], "no usage sink 'nobody'"),
    ],
)  # fmt: skip
def test_what_is_refused(arguments, words):
    with pytest.raises(CommandError, match=words):
        run(*arguments)
    assert not UsageSink.objects.exists()
    assert not AuditEntry.objects.exists()


def test_a_name_is_taken_once(receiver):
    run("add", "hook", receiver.url)
    with pytest.raises(CommandError, match="already exists"):
        run("add", "hook", receiver.url)
    run("add", "meter", receiver.url, "--kind", "openmeter")
    with pytest.raises(CommandError, match="Only webhooks"):
        run("rotate", "meter")
