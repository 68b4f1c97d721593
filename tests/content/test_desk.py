"""Content rules in the admin: kept, tried, and what they have found put before reviewers."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from streaming.models import (
    ContentRule,
    OutboxMessage,
    SessionEvent,
    StreamSession,
    Tenant,
    TenantMember,
)
from streaming.services import reviews
from streaming.services.explaining import explain
from tests.admin.rows import add_session

pytestmark = pytest.mark.django_db

RULE = {
    "name": "digits", "kind": "regex", "pattern": r"\d{4,8}", "action": "mask", "replacement": "#",
    "is_active": "on",
}  # fmt: skip


def client_of(role: str, tenant: Tenant | None = None) -> Client:
    user = User.objects.create_user(role, password="x", is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    if tenant is not None:
        TenantMember.objects.create(user=user, tenant=tenant)
    client = Client()
    client.force_login(user)
    return client


def test_a_tenant_admin_keeps_the_rules_of_its_own_tenant_only() -> None:
    ours, theirs = (Tenant.objects.create(name=name) for name in ("acme", "globex"))
    client = client_of("tenant_admin", ours)
    add = reverse("admin:streaming_contentrule_add")
    assert client.post(add, {**RULE, "tenant": ours.pk}).status_code == 302
    rule = ContentRule.objects.get()
    assert (rule.tenant, rule.pattern) == (ours, RULE["pattern"])
    said = OutboxMessage.objects.get(kind="audit").data
    assert (said["action"], said["subject"], said["tenant_id"]) == (
        "rule.create",
        "rule:digits",
        ours.pk,
    )
    assert said["data"]["does"] == "mask"
    assert RULE["pattern"] not in str(said)
    for tenant in (theirs.pk, ""):
        refused = client.post(add, {**RULE, "name": "more", "tenant": tenant})
        assert refused.status_code == 200
        assert refused.context["errors"]
    of_others = ContentRule.objects.create(tenant=theirs, name="other", pattern="x")
    for page in ("change", "try_one"):
        answer = client.get(reverse(f"admin:streaming_contentrule_{page}", args=[of_others.pk]))
        assert answer.status_code in (302, 403, 404)


@pytest.mark.parametrize("replacement", ["", "\u200b", " \u00ad"])
def test_a_mask_that_nobody_sees_is_refused(replacement: str) -> None:
    """``seXcret`` without its ``X`` is a word that another rule may forbid."""
    tenant = Tenant.objects.create(name="acme")
    client = client_of("tenant_admin", tenant)
    add = reverse("admin:streaming_contentrule_add")
    given = {**RULE, "tenant": tenant.pk, "replacement": replacement}
    answer = client.post(add, given)
    assert "needs something that is seen" in answer.content.decode()
    assert client.post(add, {**given, "action": "flag"}).status_code == 302


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "no regular expression"),
        ("(?=x)x", "Lookahead"),
        ("x*", "where there is nothing"),
        ("x{300}", "longer than 256"),
    ],
)
def test_what_cannot_be_applied_is_refused_with_its_reason(pattern: str, why: str) -> None:
    tenant = Tenant.objects.create(name="acme")
    answer = client_of("tenant_admin", tenant).post(
        reverse("admin:streaming_contentrule_add"),
        {**RULE, "tenant": tenant.pk, "pattern": pattern},
    )
    assert why in str(answer.context["adminform"].form.errors["pattern"])
    assert not ContentRule.objects.exists()


def test_a_text_shows_what_rules_make_of_it() -> None:
    tenant = Tenant.objects.create(name="acme")
    one = ContentRule.objects.create(tenant=tenant, name="digits", kind="regex", pattern=r"\d+")
    ContentRule.objects.create(name="for all", pattern="enough", action="stop")
    ContentRule.objects.create(tenant=tenant, name="off", pattern="text", is_active=False)
    client = client_of("tenant_admin", tenant)
    text = {"text": "12 & a <text> 345. Enough of it"}
    tried = client.post(reverse("admin:streaming_contentrule_try"), {**text, "tenant": tenant.pk})
    assert tried.context["tried"].shown == "*** & a <text> ***. "
    assert set(tried.context["tried"].hits) == {("digits", "mask", 2), ("for all", "stop", 1)}
    assert "*** &amp; a &lt;text&gt; ***." in tried.content.decode()
    alone = client.post(reverse("admin:streaming_contentrule_try_one", args=[one.pk]), text)
    assert alone.context["tried"].shown == "*** & a <text> ***. Enough of it"
    assert "no-store" in alone["Cache-Control"]


def flagged_session(action: str = "flag", **columns: object) -> StreamSession:
    session = add_session(content_action=action, content_rule="insults", review="needed", **columns)
    SessionEvent.objects.create(
        session=session, at=timezone.now(), kind="filtered", seq=7,
        data={"rule": "insults", "action": action, "count": 1},
    )  # fmt: skip
    return session


@pytest.mark.parametrize("role", ["content_reviewer", "support"])
def test_reviewers_find_what_rules_have_found_and_work_through_it(role: str) -> None:
    session = flagged_session()
    client = client_of(role)
    page = reverse("admin:streaming_flaggedsession_changelist")
    shown = client.get(page, {"review": "needed"}).content.decode()
    assert session.reference in shown
    assert "insults" in shown
    assert "flagged" in shown
    assert session.reference not in client.get(page, {"content_action": "stop"}).content.decode()
    told = client.get(reverse("admin:streaming_streamsession_change", args=[session.pk]))
    assert "Content rule “insults” found something in the answer." in told.content.decode()

    explain([session.pk])  # telling its story again takes it from nobody's desk
    session.refresh_from_db()
    assert session.review == "needed"
    reviews.mark_reviewed(session.pk, note="harmless", ticket="", by=f"user:{role}")
    explain([session.pk])
    session.refresh_from_db()
    assert session.review == "reviewed"
    assert session.reference not in client.get(page, {"review": "needed"}).content.decode()
