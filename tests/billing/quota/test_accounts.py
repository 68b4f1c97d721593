"""Changing accounts: checked, audited, in force."""

from __future__ import annotations

import json
from decimal import Decimal
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from billing.errors import BillingError
from billing.models import AuditEntry
from billing.services.accounts import change_account, find_account
from tests.billing.lines import add_usage, settle
from tests.billing.rows import add_plan, add_tenant

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("account", *arguments, stdout=out)
    return out.getvalue()


def test_a_change_is_audited_with_what_was():
    tenant = add_tenant("acme")
    change_account(
        tenant.pk, actor="user:pat", token_limit=1000, spend_limit=Decimal("12.50"),
        spend_currency="EUR", legal_name="Acme Ltd",
    )  # fmt: skip
    change_account(tenant.pk, actor="user:pat", token_limit=2000)
    change_account(tenant.pk, actor="user:pat", token_limit=2000)  # changes nothing
    first, second = AuditEntry.objects.filter(action="account.change").order_by("seq")
    assert (first.actor, first.subject, first.tenant_id) == ("user:pat", "tenant:acme", tenant.pk)
    assert json.loads(first.data)["now"]["spend_limit"].rstrip("0") == "12.5"
    assert json.loads(second.data) == {"was": {"token_limit": 1000}, "now": {"token_limit": 2000}}


@pytest.mark.parametrize(
    "values",
    [
        {"token_limit": -1},
        {"spend_limit": Decimal("-0.01"), "spend_currency": "EUR"},
        {"spend_limit": Decimal(5)},
        {"spend_currency": "euro"},
        {"spend_currency": "EUX"},
        {"time_zone": "Mars/Olympus"},
        {"colour": "red"},
    ],
)
def test_what_cannot_be_is_refused(values):
    tenant = add_tenant("acme")
    with pytest.raises(BillingError):
        change_account(tenant.pk, actor="user:pat", **values)
    assert not AuditEntry.objects.exists()


def test_the_command():
    tenant = add_tenant("acme")
    settle(add_usage(tenant), 850)
    add_plan(currency="USD")
    said = run(
        "set", "acme", "--token-limit", "1000", "--spend-limit", "20.5", "--currency", "EUR",
        "--time-zone", "Europe/Berlin", "--legal-name", "Acme Ltd", "--soft",
    )  # fmt: skip
    assert "850 of 1,000 tokens" in said
    assert "USD" in said  # a limit in EUR does not count it
    account = find_account("acme")
    assert (account.token_limit, account.spend_limit) == (1000, Decimal("20.5"))
    assert (account.time_zone, account.limits_are_hard) == ("Europe/Berlin", False)
    assert AuditEntry.objects.get(action="account.change").actor.startswith("command:")
    run("set", "acme", "--token-limit", "none", "--hard")
    account.refresh_from_db()
    assert (account.token_limit, account.limits_are_hard) == (None, True)
    assert "Acme Ltd" in run("show", "acme")
    assert "acme" in run("list")
    assert "agree" in run("recount", "acme")


def test_the_command_says_what_is_wrong():
    with pytest.raises(CommandError, match="no tenant 'nobody'"):
        run("show", "nobody")
    add_tenant("acme")
    with pytest.raises(CommandError, match="currency"):
        run("set", "acme", "--spend-limit", "5")
    with pytest.raises(CommandError, match="number"):
        run("set", "acme", "--token-limit", "many")
    with pytest.raises(CommandError, match="Say what"):
        run("set", "acme")
