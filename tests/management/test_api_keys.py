"""API keys, by the service and by its commands."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from streaming.models import ApiKey, Tenant
from streaming.services.api_keys import (
    create_api_key,
    find_api_key,
    list_api_keys,
    revoke_api_key,
    rotate_api_key,
)
from streaming.services.refused import Refused

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def test_only_the_hash_of_a_key_is_kept():
    key, secret = create_api_key(tenant_name="acme", name="web", on_disconnect="finish")
    assert secret.startswith("ub-live-")
    assert len(secret) == len("ub-live-") + 43
    key.refresh_from_db()
    assert key.key_hash == hashlib.sha256(secret.encode()).hexdigest()
    assert key.prefix == secret[:12]
    assert secret not in repr(ApiKey.objects.values().get())
    assert (key.tenant.name, key.name, key.on_disconnect) == ("acme", "web", "finish")
    assert key.is_active(timezone.now())
    assert key.expires_at is None


def test_a_test_key_says_so_and_a_tenant_is_made_once():
    create_api_key(tenant_name="acme")
    key, secret = create_api_key(tenant_name="acme", is_test=True, expires_in=timedelta(days=2))
    assert secret.startswith("ub-test-")
    assert key.is_test
    assert Tenant.objects.count() == 1
    assert not key.is_active(timezone.now() + timedelta(days=3))


@pytest.mark.parametrize("name", ["", "two words", "-dash", "x" * 65, "<script>"])
def test_a_bad_tenant_name_is_refused(name):
    with pytest.raises(Refused, match="Tenant"):
        create_api_key(tenant_name=name)
    assert not Tenant.objects.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        {"on_disconnect": "explode"},
        {"name": "x" * 101},
        {"expires_in": timedelta()},
        {"expires_in": timedelta(days=-1)},
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(arguments):
    with pytest.raises(Refused):
        create_api_key(tenant_name="acme", **arguments)
    assert not Tenant.objects.exists()


def test_a_key_is_found_by_id_by_prefix_and_by_itself():
    key, secret = create_api_key(tenant_name="acme")
    for name in (str(key.pk), key.prefix, key.prefix[:10], secret):
        assert find_api_key(name) == key


@pytest.mark.parametrize("name", ["", "0", "ub-live-zzzz-not-there", "ub-live-%"])
def test_an_unknown_key_is_refused_without_repeating_it(name):
    create_api_key(tenant_name="acme")
    with pytest.raises(Refused, match="There is no API key") as refusal:
        find_api_key(name)
    assert "not-there" not in str(refusal.value)


def test_a_prefix_that_several_keys_share_is_refused_with_their_ids():
    one, _ = create_api_key(tenant_name="acme")
    other, _ = create_api_key(tenant_name="acme")
    with pytest.raises(Refused, match=rf"\({one.pk}, {other.pk}\)|\({other.pk}, {one.pk}\)"):
        revoke_api_key("ub-live-")


def test_a_revoked_key_is_dead_and_stays_so():
    key, _ = create_api_key(tenant_name="acme")
    assert not revoke_api_key(str(key.pk)).is_active(timezone.now())
    with pytest.raises(Refused, match="was revoked before"):
        revoke_api_key(str(key.pk))
    with pytest.raises(Refused, match="no longer valid"):
        rotate_api_key(str(key.pk), timedelta(hours=1))


def test_rotation_hands_the_attributes_on_and_ends_the_old_key_after_the_overlap():
    old, _ = create_api_key(tenant_name="acme", name="web", is_test=True, on_disconnect="cancel")
    new, secret = rotate_api_key(str(old.pk), timedelta(hours=1))
    old.refresh_from_db()
    assert (new.tenant, new.name, new.is_test, new.on_disconnect) == (
        old.tenant, "web", True, "cancel",
    )  # fmt: skip
    assert new.expires_at is None
    assert find_api_key(secret) == new
    assert old.replaced_by == new
    now = timezone.now()
    assert old.is_active(now + timedelta(minutes=59))
    assert not old.is_active(now + timedelta(minutes=61))
    with pytest.raises(Refused, match="was rotated before"):
        rotate_api_key(str(old.pk), timedelta(hours=1))


def test_rotation_never_lengthens_a_life_and_keeps_the_time_to_live():
    old, _ = create_api_key(tenant_name="acme", expires_in=timedelta(days=30))
    before = old.expires_at
    new, _ = rotate_api_key(str(old.pk), timedelta(days=90))
    old.refresh_from_db()
    assert old.expires_at == before
    assert new.expires_at - new.created_at == pytest.approx(
        timedelta(days=30), abs=timedelta(seconds=5)
    )
    with pytest.raises(Refused, match="negative"):
        rotate_api_key(str(new.pk), timedelta(hours=-1))


def test_keys_are_listed_by_tenant():
    key, _ = create_api_key(tenant_name="acme")
    create_api_key(tenant_name="other")
    assert list_api_keys().count() == 2
    assert list(list_api_keys(tenant_name="acme")) == [key]
    with pytest.raises(Refused, match="There is no tenant 'nobody'"):
        list_api_keys(tenant_name="nobody")


def test_the_last_line_of_the_command_is_the_key_alone():
    last = run("create_api_key", "--tenant", "acme", "--test", "--expires-days", "3").splitlines()[
        -1
    ]
    key = find_api_key(last)
    assert last.startswith("ub-test-")
    assert key.tenant.name == "acme"
    assert key.expires_at is not None


def test_the_commands_list_revoke_and_rotate_without_showing_a_secret_again():
    secret = run("create_api_key", "--tenant", "acme", "--name", "web").strip()
    new_secret = run("api_keys", "rotate", secret[:12]).splitlines()[-1]
    assert find_api_key(new_secret).name == "web"
    assert "Revoked" in run("api_keys", "revoke", str(find_api_key(new_secret).pk))
    listed = run("api_keys", "list")
    assert "revoked" in listed
    assert "active until" in listed
    assert secret not in listed
    assert new_secret not in listed


def test_a_refusal_is_a_command_error():
    with pytest.raises(CommandError, match="There is no API key"):
        run("api_keys", "revoke", "nothing")
    with pytest.raises(CommandError, match="There is no tenant"):
        run("api_keys", "list", "--tenant", "nobody")
    with pytest.raises(CommandError, match="Tenant 'a b'"):
        run("create_api_key", "--tenant", "a b")
    assert "There are no API keys" in run("api_keys", "list")
