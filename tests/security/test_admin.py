"""What staff see and do: origins of tenants, and tokens that are ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from streaming.models import EmbedToken, OutboxMessage, Tenant
from streaming.services.embed_tokens import forget_expired
from streaming.services.retention import erase_end_user
from tests.admin.test_operations import act
from tests.billing.rows import add_key

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    return Tenant.objects.create(name="acme")


def add_token(tenant: Tenant, **columns: Any) -> EmbedToken:
    key = tenant.api_keys.first() or add_key(tenant)
    expires = timezone.now() + timedelta(minutes=15)
    return EmbedToken.objects.create(
        **{"tenant": tenant, "api_key": key, "end_user": "ann", "expires_at": expires, **columns}
    )


def announced() -> list[dict[str, Any]]:
    return list(OutboxMessage.objects.filter(kind="audit").values_list("data", flat=True))


def test_origins_are_one_a_line(admin_client: Client, tenant: Tenant) -> None:
    address = reverse("admin:streaming_tenant_change", args=[tenant.pk])
    form = {
        "members-TOTAL_FORMS": 0, "members-INITIAL_FORMS": 0, "name": tenant.name,
        "display_name": "Acme",
    }  # fmt: skip

    def save(origins: str) -> str:
        return admin_client.post(address, {**form, "allowed_origins": origins}, follow=True).text

    save("https://Shop.example:443/\nhttp://localhost:3000\n")
    tenant.refresh_from_db()
    assert tenant.allowed_origins == ["https://shop.example", "http://localhost:3000"]
    assert "https://shop.example\nhttp://localhost:3000" in admin_client.get(address).text
    said = [one for one in announced() if one["action"] == "tenant.change"][-1]
    assert said["data"]["allowed_origins"].endswith(
        '["https://shop.example", "http://localhost:3000"]'
    )
    known = len(announced())
    save("https://shop.example\r\nhttp://localhost:3000")
    assert len(announced()) == known, "nothing was changed"
    assert "wildcards are not supported" in save("https://*.example")
    assert "https://shop.example/chat: an origin is" in save("https://shop.example/chat")
    tenant.refresh_from_db()
    assert len(tenant.allowed_origins) == 2
    save("")
    tenant.refresh_from_db()
    assert tenant.allowed_origins == []


def test_a_token_is_ended_and_its_preset_never_shown(admin_client: Client, tenant: Tenant) -> None:
    token = add_token(tenant, end_user="an\u202en", preset={"system": "The secret prompt."})
    address = reverse("admin:streaming_embedtoken_change", args=[token.pk])
    page = admin_client.get(address).text
    assert "system" in page
    assert "secret prompt" not in page
    assert "an\u202en" not in page
    for query in ("?q=ann", f"?q={token.pk}", "?q=acme", "?q=nonsense", "?revoked_at__isempty=1"):
        listed = admin_client.get(reverse("admin:streaming_embedtoken_changelist") + query)
        assert listed.status_code == 200
    assert "Revoke them?" in act(admin_client, "embedtoken", "revoke", token, confirmed=False).text
    act(admin_client, "embedtoken", "revoke", token)
    token.refresh_from_db()
    assert token.revoked_at is not None
    assert "over already" in act(admin_client, "embedtoken", "revoke", token).text
    assert [(one["action"], one["actor"], one["subject"]) for one in announced()] == [
        ("embed_token.revoke", "user:admin", f"embed:{token.pk}")
    ]


def test_who_is_forgotten_has_no_tokens_any_more(tenant: Tenant) -> None:
    add_token(tenant)
    other = add_token(tenant, end_user="eve")
    erase_end_user(tenant.pk, "ann", by="user:admin")
    assert list(EmbedToken.objects.all()) == [other]


def test_tokens_that_are_over_are_forgotten(tenant: Tenant) -> None:
    now = timezone.now()
    add_token(tenant, expires_at=now - timedelta(days=1, minutes=1))
    kept = [add_token(tenant, expires_at=now - timedelta(hours=23)), add_token(tenant)]
    assert forget_expired() == 1
    assert set(EmbedToken.objects.all()) == set(kept)
