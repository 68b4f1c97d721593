"""Two tenants with rows in every table, and a person for every role."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.test import Client
from django.urls import URLPattern, URLResolver
from django.utils import timezone

from billing.models import (
    BudgetAlert,
    BulkCredit,
    CreditRequest,
    EventDelivery,
    Export,
    PriceList,
    QuotaUse,
    UsageSink,
)
from billing.services import audit as billing_audit
from billing.services import credits
from billing.services.periods import account_of
from streaming.admin.tenancy import OfTenant
from streaming.models import (
    ContentRule,
    EmbedToken,
    Incident,
    InferenceNode,
    ModelAlias,
    SessionReview,
    StreamSession,
    Tenant,
    TenantMember,
    WebhookDelivery,
    WebhookEndpoint,
)
from streaming.services import audit
from streaming.services.explaining import explain_due
from tests.admin.rows import add_session
from tests.billing.admin.books import keep_books
from tests.billing.rows import add_key, add_plan

OURS, THEIRS = "acme", "globex"

PERSONS = (
    "support",
    "content_reviewer",
    "finance",
    "operator",
    "tenant_admin",
    "superuser",
    "nobody",
)
"""``tenant_admin`` is a member of ``OURS``; ``nobody`` is staff without any role."""

CONTENT = ("lighthouse", "alert('the answer')", "the answer&#x27;", "of course.")
"""Of what was asked and answered, as it is and escaped."""


def fill(name: str) -> Tenant:
    """A tenant with a row in every table that belongs to tenants."""
    tenant = keep_books(name).tenant
    if not StreamSession.objects.filter(reference="K7Q-4MX").exists():
        session = add_session()
    else:
        session = add_session(tenant=tenant, reference="ZZZ-999", end_user=f"visitor of {name}")
    SessionReview.objects.create(session=session, note=f"note about {name}")
    key = add_key(tenant, prefix=f"ub-{name}", name=f"key of {name}")
    ModelAlias.objects.create(tenant=tenant, alias=f"alias-of-{name}", model="small")
    ContentRule.objects.create(tenant=tenant, name=f"rule-of-{name}", pattern=f"word of {name}")
    add_plan(tenant, model=f"model-of-{name}")
    account = account_of(tenant.pk)
    account.legal_name = f"{name} Limited"
    account.save(update_fields=["legal_name"])
    credits.book_adjustment(
        tenant_id=tenant.pk, currency="EUR", amount=Decimal(-500), reason=f"for {name}",
        actor="user:sam",
    )  # fmt: skip
    QuotaUse.objects.get_or_create(account=account, period_name="2026-11")
    BudgetAlert.objects.create(
        account=account, period_name="2026-11", measure="tokens", threshold=80, at=timezone.now()
    )
    sink = UsageSink.objects.create(
        name=f"sink-of-{name}", tenant=tenant, url=f"https://{name}.example/", kind="webhook"
    )
    EventDelivery.objects.create(sink=sink, event_id=f"event-of-{name}", type="t", body=name)
    EmbedToken.objects.create(
        tenant=tenant, api_key=key, end_user=f"reader of {name}", expires_at=timezone.now(),
        preset={"system": "You keep a lighthouse."},
    )  # fmt: skip
    hook = WebhookEndpoint.objects.create(tenant=tenant, url=f"https://{name}.example/hook")
    WebhookDelivery.objects.create(endpoint=hook, kind="test", payload={"type": f"for {name}"})
    Export.objects.create(
        period_name="2026-11", format="csv", requested_by=f"user:{name}", tenant=tenant,
        manifest={"files": []}, finished_at=timezone.now(),
    )  # fmt: skip
    key_facts = {"actor": f"user:{name}", "subject": f"key:{key.prefix}", "tenant_id": tenant.pk}
    billing_audit.append("key.create", data={}, **key_facts)
    audit.announce("key.change", **key_facts)
    return tenant


def fill_both() -> dict[str, Tenant]:
    """Both tenants; of the model admins that belong to tenants each has a row of both."""
    tenants = {name: fill(name) for name in (OURS, THEIRS)}
    InferenceNode.objects.update(source=InferenceNode.Source.ADMIN)  # else nobody can remove it
    assert PriceList.objects.filter(tenant=tenants[OURS]).exists()
    assert CreditRequest.objects.count() == 2
    while any(explain_due().values()):  # lists would do so, and change what tests compare
        pass
    incident = Incident.objects.create(kind="interruption", subject="gpu-a", cause="engine_crash")
    BulkCredit.objects.create(
        incident=incident, which="all", percent=1, reason="x", state="waiting",
        requested_by="user:sam", requested_at=timezone.now(),
    )  # fmt: skip
    StreamSession.objects.filter(reference__in=["K7Q-4MX", "ZZZ-999"]).update(
        outcome="recovered", interrupted_at=timezone.now(), interrupted_seq=1, review="needed",
        interrupted_node="gpu-a", interrupted_cause="engine_crash", incident=incident,
        content_action="flag", content_rule="rule",
    )  # fmt: skip
    return tenants


def log_in(person: str, member_of: Tenant) -> Client:
    """The browser of somebody with that role."""
    if person == "superuser":
        user = User.objects.create_superuser(person, password="x")
    else:
        user = User.objects.create_user(person, password="x", is_staff=True)
    if person not in ("superuser", "nobody"):
        user.groups.add(Group.objects.get(name=person))
    if person == "tenant_admin":
        TenantMember.objects.create(user=user, tenant=member_of)
    client = Client()
    client.force_login(user)
    return client


def row_of(model: type[Model], tenant: Tenant) -> Model:
    """A row that belongs to the tenant; of tables that belong to none, any."""
    owner: Any = admin.site._registry[model]
    rows = model._default_manager.order_by("pk")
    if isinstance(owner, OfTenant):
        rows = rows.filter(**{owner.tenant_path: tenant.pk})
    row = rows.first()
    assert row is not None, f"no {model._meta.label} of {tenant}"
    return row


def patterns(under: Any = None) -> Iterator[URLPattern]:
    """Every address of the admin that has a name."""
    for one in admin.site.urls[0] if under is None else under:
        if isinstance(one, URLResolver):
            yield from patterns(one.url_patterns)
        elif one.name:
            yield one
