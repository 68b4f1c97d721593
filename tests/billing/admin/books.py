"""Books of a tenant that finance finds in the admin: real settlements of sessions with troubles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from billing.models import (
    BudgetAlert,
    BulkCredit,
    CreditRequest,
    EventDelivery,
    Export,
    LedgerEntry,
    PricePlan,
    QuotaUse,
    UsageSink,
)
from billing.services import credits
from billing.services.periods import account_of
from billing.services.settlement import settle_due
from streaming.models import Incident, Tenant
from tests.billing.rows import Story, add_plan, add_tenant

SCRIPT = "<script>alert('reason')</script>"
FINANCE = (
    "view_tenant", "view_streamsession", "view_ledgerentry", "view_settlement", "view_usagerecord",
    "view_pricelist", "view_priceplan", "add_priceplan", "view_billingaccount",
    "change_billingaccount", "view_billingperiod", "change_billingperiod", "view_periodtotal",
    "view_creditrequest", "book_credit", "view_export", "export_ledger", "view_auditentry",
    "view_quotause", "view_budgetalert", "view_usagesink", "view_eventdelivery",
)  # fmt: skip


def person(name: str, permissions: Iterable[str] = (), **columns: Any) -> Client:
    """A member of staff with these permissions on all tenants, logged in."""
    user = User.objects.create_user(name, password="x", is_staff=True, **columns)
    wanted = {*permissions, "all_tenants"}
    chosen = Permission.objects.filter(codename__in=wanted)
    assert len(chosen) == len(wanted)
    user.user_permissions.set(chosen)
    client = Client()
    client.force_login(user)
    return client


def page(
    client: Client, model: str, view: str = "changelist", *arguments: Any, **query: Any
) -> str:
    """The text of a page of billing's admin, which has to open."""
    response = client.get(reverse(f"admin:billing_{model}_{view}", args=arguments), query)
    assert response.status_code == 200, response.status_code
    return response.content.decode()


def send(
    client: Client, model: str, view: str, /, *arguments: Any, to: str = "", **data: Any
) -> Any:
    """Send a form of billing's admin; ``to``: the query of its address."""
    url = reverse(f"admin:billing_{model}_{view}", args=arguments)
    return client.post(f"{url}?{to}" if to else url, data, follow=True)


def act(client: Client, model: str, action: str, *rows: Any, confirmed: bool = True) -> Any:
    """Choose rows and an action, and say yes."""
    data = {"action": action, "_selected_action": [row.pk for row in rows]}
    return send(client, model, "changelist", **data, **({"confirmed": "yes"} if confirmed else {}))


@dataclass
class Books:
    """``story``: a session with a failover, a lost connection, a return and its end."""

    tenant: Tenant
    plan: PricePlan
    story: Story

    @property
    def charge(self) -> LedgerEntry:
        """Its first line."""
        return LedgerEntry.objects.filter(session_id=self.story.session.pk).earliest("pk")


def interrupted_session(tenant: Tenant | None = None, **columns: Any) -> Story:
    """The session of the worked example in ``docs/billing.md``, settled three times."""
    story = Story(tenant, prompt=1200, cached=200, **columns)
    story.attempt("gpu-1")
    story.tokens(412)
    story.fail("engine_crash", discarded=3)
    story.attempt("gpu-2", grade="exact")
    story.tokens(228)
    story.deliver(600, by="socket")
    story.suspend()
    settle_due()
    story.deny(590, announce=True)
    settle_due()
    story.attempt("gpu-2", grade="exact", kind="resumption")
    story.tokens(93)
    story.deliver(733)
    story.end()
    settle_due()
    return story


def keep_books(name: str = "acme") -> Books:
    """A tenant with prices and one session."""
    tenant = add_tenant(name)
    plan = PricePlan.objects.filter(list__tenant__isnull=True).first() or add_plan(
        input="0.50", cached="0.10", output="1.50", cost="0.80"
    )
    account_of(tenant.pk)
    return Books(tenant, plan, interrupted_session(tenant))


def fill_other_tables(books: Books) -> None:
    """A row in every table that settlements do not fill, with what strangers may have written."""
    account = account_of(books.tenant.pk)
    credits.book_credit(
        charge_id=books.charge.pk, amount=Decimal("0.0001"), reason=SCRIPT, actor="user:pat"
    )
    credits.book_adjustment(
        tenant_id=books.tenant.pk, currency="EUR", amount=Decimal(-500), reason=SCRIPT,
        actor="user:pat",
    )  # fmt: skip
    assert CreditRequest.objects.count() == 1
    QuotaUse.objects.get_or_create(account=account, period_name="2026-11")
    BudgetAlert.objects.create(
        account=account, period_name="2026-11", measure="tokens", threshold=80,
        at=books.plan.created_at,
    )  # fmt: skip
    sink = UsageSink.objects.create(name="collector", url="https://collector.example/events")
    EventDelivery.objects.create(
        sink=sink, event_id="settlement:1", type="t", body=SCRIPT, answered=SCRIPT
    )
    incident = Incident.objects.create(kind="interruption", subject=SCRIPT)
    bulk = BulkCredit.objects.create(
        incident=incident, which="all", percent=50, reason=SCRIPT, state="waiting",
        requested_by=SCRIPT, requested_at=books.plan.created_at,
    )  # fmt: skip
    bulk.lines.create(charge=books.charge, tenant=books.tenant, currency="EUR", amount=Decimal(1))
    Export.objects.create(period_name="2026-11", format="csv", requested_by=SCRIPT, error=SCRIPT)
