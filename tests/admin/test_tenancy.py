"""Whoever does not see all tenants sees theirs, whatever way they try. ``test_role_matrix`` opens every
page; here are the other ways: filters, searches, choices, forms, actions, addresses made by hand.
"""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.core.exceptions import PermissionDenied
from django.db.models import ForeignKey, Model
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.urls import reverse

from billing.models import BillingPeriod, CreditRequest, Export, LedgerEntry, PriceList
from streaming.admin import tenancy
from streaming.admin.tenancy import LimitedChoices, OfFleet, OfTenant, Scoped
from streaming.models import (
    ApiKey,
    ModelAlias,
    OutboxMessage,
    StreamSession,
    Tenant,
    TenantMember,
)
from tests.admin.test_content import reveal
from tests.admin.two_tenants import OURS, THEIRS, fill_both, row_of

pytestmark = pytest.mark.django_db

NOT_SHOWN = {"streaming.OutboxMessage", "streaming.Incident", "billing.BulkCredit"}
"""They are of several tenants, or of one in words, and for who sees all tenants."""


def leads_to_a_tenant(model: type[Model], steps: int = 4) -> bool:
    """Whether rows of this table belong to tenants, by the foreign keys or by the names of columns."""
    if model is Tenant:
        return True
    for field in model._meta.concrete_fields:
        if field.name in ("tenant_id", "session_id"):
            return True
        if isinstance(field, ForeignKey) and steps:
            related = field.remote_field.model
            if related is not model and leads_to_a_tenant(related, steps - 1):
                return True
    return False


def test_every_table_of_the_admin_is_scoped():
    """A table that belongs to tenants says how; any other is closed to who does not see all."""
    for model, model_admin in admin.site._registry.items():
        assert isinstance(model_admin, Scoped), model
        assert isinstance(model_admin, OfTenant) is not isinstance(model_admin, OfFleet), model
        if leads_to_a_tenant(model):
            shown = isinstance(model_admin, OfTenant)
            assert shown or model._meta.label in NOT_SHOWN, f"{model} belongs to tenants"
        if isinstance(model_admin, OfTenant):
            model._default_manager.filter(**{f"{model_admin.tenant_path}__in": [1]})  # it exists


def test_what_can_be_edited_within_a_page_has_limited_choices():
    request = RequestFactory().get("/")
    request.user = User.objects.create_superuser("root")
    for model_admin in admin.site._registry.values():
        for inline in model_admin.get_inline_instances(request):
            if inline.has_add_permission(request, None) or inline.has_change_permission(request):
                assert isinstance(inline, LimitedChoices) or not any(
                    isinstance(field, ForeignKey) for field in inline.model._meta.fields
                ), inline


def test_what_is_registered_without_a_scope_is_closed():
    class Unthinking(admin.ModelAdmin):
        pass

    site = type(admin.site._wrapped)("elsewhere")  # type: ignore[attr-defined]
    site.register(ApiKey, Unthinking)
    site.register(Tenant)
    for model_admin in site._registry.values():
        assert isinstance(model_admin, OfFleet)
    request = RequestFactory().get("/")
    request.user = User.objects.create_user("kim", is_staff=True)
    request.user.user_permissions.set(Permission.objects.filter(codename="view_apikey"))
    assert not site._registry[ApiKey].has_view_permission(request)
    request.user = User.objects.create_superuser("root")
    assert site._registry[ApiKey].has_view_permission(request)


def test_a_page_that_says_nothing_of_its_scope_is_closed():
    asked = RequestFactory().get("/")
    asked.user = User.objects.create_user("kim", is_staff=True)
    asked.resolver_match = type("Match", (), {"url_name": "new_page"})()
    view: Any = lambda request: HttpResponse("everything")  # noqa: E731
    with pytest.raises(PermissionDenied):
        admin.site.admin_view(view)(asked)
    assert admin.site.admin_view(tenancy.scopes_itself(view))(asked).status_code == 200


def test_who_sees_what():
    acme, globex = (Tenant.objects.create(name=name) for name in (OURS, THEIRS))
    root = User.objects.create_superuser("root")
    kim = User.objects.create_user("kim", is_staff=True)
    sam = User.objects.create_user("sam", is_staff=True)
    sam.user_permissions.set(Permission.objects.filter(codename="all_tenants"))
    TenantMember.objects.create(user=kim, tenant=acme)
    everybody = Tenant.objects.order_by("pk")
    for user in (root, User.objects.get(username="sam")):
        assert tenancy.tenants_of(user) is None
        assert not tenancy.is_limited(user)
        assert list(tenancy.visible(user, everybody, "pk")) == [acme, globex]
        assert tenancy.may_see(user, None)
    assert tenancy.tenants_of(kim) == {acme.pk}
    assert list(tenancy.visible(kim, everybody, "pk")) == [acme]
    assert tenancy.may_see(kim, acme.pk)
    assert not tenancy.may_see(kim, globex.pk)
    assert not tenancy.may_see(kim, None)
    assert tenancy.tenants_of(AnonymousUser()) == frozenset()
    root.is_active = False
    assert tenancy.tenants_of(root) == frozenset()


# --- somebody with every permission but that for all tenants ----------------------------------------


@pytest.fixture
def both() -> dict[str, Tenant]:
    return fill_both()


@pytest.fixture
def member(both) -> Client:
    """May do everything there is, for ``OURS``."""
    user = User.objects.create_user("kim", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.exclude(codename="all_tenants"))
    TenantMember.objects.create(user=user, tenant=both[OURS])
    client = Client()
    client.force_login(user)
    return client


def of_tenants() -> list[type[Model]]:
    return [model for model, owner in admin.site._registry.items() if isinstance(owner, OfTenant)]


def place(model: type[Model], page: str = "changelist") -> str:
    return f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}"


def test_lists_show_their_own_rows_however_they_are_asked(member, both):
    theirs = StreamSession.objects.get(reference="ZZZ-999")
    queries: list[dict[str, Any]] = [
        {},
        {"q": THEIRS},
        {"q": str(theirs.pk)},
        {"q": theirs.reference},
        {"tenant": both[THEIRS].pk},
        {"period": BillingPeriod.objects.filter(tenant=both[THEIRS]).first().pk},
    ]
    for model in of_tenants():
        path = model._default_manager.filter
        owner: Any = admin.site._registry[model]
        rows = set(path(**{owner.tenant_path: both[THEIRS].pk}).values_list("pk", flat=True))
        assert rows, model
        for query in queries:
            answer = member.get(reverse(place(model)), query, follow=True)
            if answer.status_code == 400:  # no list is asked so
                assert THEIRS not in answer.text
                continue
            assert answer.status_code == 200, (model, query)
            shown = {row.pk for row in answer.context["cl"].result_list}
            assert not shown & rows, (model, query)
            page = answer.text.replace(f'value="{THEIRS}"', "")  # what was searched for
            page = page.replace(f"={THEIRS}", "").replace(f"%3D{THEIRS}", "")
            assert THEIRS not in page, (model, query)


def test_the_tables_of_sessions_rows_want_a_search(member, both):
    session = StreamSession.objects.get(reference="K7Q-4MX")
    for model in ("attempt", "sessionevent", "tokencheckpoint"):
        url = reverse(f"admin:streaming_{model}_changelist")
        assert not member.get(url).context["cl"].result_list
        found = member.get(url, {"q": str(session.pk)}).context["cl"].result_list
        assert {row.session_id for row in found} == {session.pk}


def test_choices_are_their_own(member, both):
    fields = [
        ("streaming", "apikey", "tenant"), ("billing", "ledgerentry", "tenant"),
        ("billing", "ledgerentry", "period"), ("billing", "eventdelivery", "sink"),
    ]  # fmt: skip
    for app, model, field in fields:
        for term in ("", THEIRS, OURS):
            query = {"app_label": app, "model_name": model, "field_name": field, "term": term}
            found = member.get(reverse("admin:autocomplete"), query).json()["results"]
            assert not any(THEIRS in one["text"] for one in found)
            assert found or term
    query = {"app_label": "streaming", "model_name": "tenantmember", "field_name": "user"}
    assert member.get(reverse("admin:autocomplete"), query).status_code == 403


def test_nothing_is_made_for_another_tenant_or_for_all(member, both):
    theirs = both[THEIRS].pk
    before = counts()
    forms: list[tuple[str, dict[str, Any]]] = [
        ("admin:streaming_apikey_add", {"name": "x", "on_disconnect": "cancel", "level": "standard"}),
        ("admin:streaming_modelalias_add", {"alias": "x", "model": "small"}),
        ("admin:billing_usagesink_add", {"name": "x", "kind": "webhook", "url": "https://x.example"}),
        ("admin:billing_billingaccount_add", {"time_zone": "UTC", "spend_currency": "EUR"}),
        ("admin:billing_ledgerentry_adjust",
            {"currency": "EUR", "amount": "-1", "reason": "x", "key": "k"}),
        ("admin:billing_export_make", {"period": "2026-11", "format": "csv"}),
        ("admin:billing_pricelist_add", {
            "currency": "EUR", "input_per_million": "1", "cached_input_per_million": "1",
            "output_per_million": "1", "coefficient": "1", "policy": "delivered",
        }),
    ]  # fmt: skip
    for name, data in forms:
        for tenant in (theirs, "", "999999"):
            answer = member.post(reverse(name), {**data, "tenant": tenant})
            assert answer.status_code == 200, (name, tenant)
            assert 'class="errorlist"' in answer.text, (name, tenant)
            assert THEIRS not in answer.text, (name, tenant)
    assert member.get(reverse("admin:streaming_tenant_add")).status_code == 403
    assert counts() == before
    assert member.post(
        reverse("admin:streaming_apikey_add"),
        {"name": "x", "on_disconnect": "cancel", "level": "standard", "tenant": both[OURS].pk},
    ).status_code == 302  # fmt: skip


def counts() -> dict[str, int]:
    return {model._meta.label: model._default_manager.count() for model in admin.site._registry}


def test_actions_find_none_of_their_rows(member, both):
    before = {
        model: list(model._default_manager.order_by("pk").values())
        for model in admin.site._registry
        if not issubclass(model, OutboxMessage)
    }
    for model in of_tenants():
        row = row_of(model, both[THEIRS])
        request = RequestFactory().get("/")
        request.user = User.objects.get(username="kim")
        for action in admin.site._registry[model].get_actions(request):
            for how in ({"confirmed": "yes", "post": "yes"}, {"select_across": "1", "index": "0"}):
                chosen = {"action": action, "_selected_action": [row.pk], **how}
                answer = member.post(reverse(place(model)), chosen)
                assert THEIRS not in text_of(answer), (model, action)
                assert answer.status_code in (200, 302, 404), (model, action)
    for model, rows in before.items():
        assert list(model._default_manager.order_by("pk").values()) == rows, model


def text_of(answer: Any) -> str:
    if not answer.streaming:
        return answer.text

    async def read() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return async_to_sync(read)().decode()


def test_addresses_made_by_hand_lead_nowhere(member, both):
    charge = LedgerEntry.objects.filter(tenant=both[THEIRS], kind="charge").first()
    period = BillingPeriod.objects.filter(tenant=both[THEIRS]).first()
    export = Export.objects.get(tenant=both[THEIRS])
    of_all = Export.objects.create(
        period_name="2026-11", format="csv", requested_by="x", manifest={"files": []},
        finished_at=export.finished_at,
    )  # fmt: skip
    prices = PriceList.objects.filter(tenant=both[THEIRS]).first()
    everybodys = PriceList.objects.get(tenant=None)
    session = StreamSession.objects.get(reference="ZZZ-999")
    request_id = CreditRequest.objects.get(tenant=both[THEIRS]).pk
    addresses = [
        f"{reverse('admin:billing_ledgerentry_credit')}?charge={charge.pk}",
        f"{reverse('admin:streaming_streamsession_do', args=['stop'])}?session={session.pk}",
        reverse("admin:streaming_streamsession_reveal", args=[session.pk]),
        reverse("admin:billing_billingperiod_close", args=[period.pk]),
        reverse("admin:billing_billingperiod_reconcile", args=[period.pk]),
        reverse("admin:billing_pricelist_prices", args=[prices.pk]),
        reverse("admin:billing_pricelist_end", args=[everybodys.pk]),
        reverse("admin:billing_creditrequest_change", args=[request_id]),
        reverse("admin:billing_auditentry_verify"),
        reverse("billing:statement", args=[period.pk]),
        *(
            reverse("billing:export-file", args=[one.pk, "manifest.json"])
            for one in (export, of_all)
        ),
    ]
    for address in addresses:
        for answer in (member.get(address), member.post(address, {"reason": "x" * 20})):
            assert answer.status_code in (403, 404, 405), address
            assert THEIRS not in answer.content.decode(), address
    assert reveal(member, session).status_code == 404


def test_of_many_rows_in_an_address_only_theirs_are_taken(member, both):
    ours = LedgerEntry.objects.filter(tenant=both[OURS], kind="charge").first()
    theirs = LedgerEntry.objects.filter(tenant=both[THEIRS], kind="charge").first()
    page = member.get(
        reverse("admin:billing_ledgerentry_credit"), {"charge": [str(ours.pk), str(theirs.pk)]}
    )
    assert page.status_code == 200
    assert [line["entry"].pk for line in page.context["lines"]] == [ours.pk]


@pytest.mark.parametrize("kind", [ApiKey, ModelAlias])
def test_a_row_is_not_moved_to_another_tenant(member, both, kind):
    row = row_of(kind, both[OURS])
    data = {"alias": "x", "model": "m", "name": "x", "on_disconnect": "cancel", "level": "standard"}
    member.post(reverse(place(kind, "change"), args=[row.pk]), {**data, "tenant": both[THEIRS].pk})
    row.refresh_from_db()
    assert row.tenant_id == both[OURS].pk


def test_who_sees_a_tenant_is_set_on_its_page_and_audited(admin_client):
    tenant = Tenant.objects.create(name=OURS)
    kim = User.objects.create_user("kim", is_staff=True)
    url = reverse("admin:streaming_tenant_change", args=[tenant.pk])
    empty = {"members-TOTAL_FORMS": "1", "members-INITIAL_FORMS": "0", "members-0-user": kim.pk}
    assert admin_client.post(url, empty).status_code == 302
    member = TenantMember.objects.get()
    assert (member.user, member.tenant) == (kim, tenant)
    gone = {
        "members-TOTAL_FORMS": "1", "members-INITIAL_FORMS": "1", "members-0-id": member.pk,
        "members-0-tenant": tenant.pk, "members-0-DELETE": "on",
    }  # fmt: skip
    assert admin_client.post(url, gone).status_code == 302
    assert not TenantMember.objects.exists()
    told = [
        (row["action"], row["actor"], row["subject"], row["tenant_id"])
        for row in OutboxMessage.objects.order_by("id").values_list("data", flat=True)
    ]
    assert told == [
        ("staff.tenant_given", "user:admin", "user:kim", tenant.pk),
        ("staff.tenant_taken", "user:admin", "user:kim", tenant.pk),
    ]
