"""The groups that migrations make, and giving them to people."""

from __future__ import annotations

import importlib
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from gateway_project.roles import ROLES
from streaming.admin.tenancy import tenants_of
from streaming.models import OutboxMessage, Tenant, TenantMember

make_groups = importlib.import_module("gateway_project.migrations.0001_roles").make_groups


def in_database() -> dict[str, set[str]]:
    """Of each group the permissions that it has."""
    return {
        group.name: {f"{app}.{name}" for app, name in group.permissions.values_list(
            "content_type__app_label", "codename"
        )}
        for group in Group.objects.all()
    }  # fmt: skip


def call(*arguments: str) -> str:
    out = StringIO()
    call_command("role", *arguments, stdout=out)
    return out.getvalue()


def announced() -> list[tuple[str, str, dict[str, Any]]]:
    rows = OutboxMessage.objects.filter(kind="audit").order_by("id").values_list("data", flat=True)
    return [(row["action"], row["subject"], row["data"]) for row in rows]


@pytest.fixture
def alice(db) -> User:
    return User.objects.create_user("alice", password="x")


def test_migrations_make_the_roles_of_the_table(db):
    assert in_database() == {role: set(permissions) for role, permissions in ROLES.items()}


@pytest.mark.django_db(transaction=True)
def test_a_test_that_empties_the_tables():
    assert set(in_database()) == set(ROLES)


@pytest.mark.django_db(transaction=True)
def test_they_come_back_after_it():
    assert in_database() == {role: set(permissions) for role, permissions in ROLES.items()}


def test_every_reason_is_given_and_no_permission_is_made_up(db):
    known = {
        f"{app}.{name}"
        for app, name in Permission.objects.values_list("content_type__app_label", "codename")
    }
    for permissions in ROLES.values():
        assert set(permissions) <= known
        assert all(permissions.values())


def test_what_an_operator_has_changed_stays(db):
    Group.objects.get(name="support").permissions.clear()
    Group.objects.get(name="operator").delete()
    apps = MigrationLoader(connection).project_state(("gateway_project", "0001_roles")).apps
    with connection.schema_editor() as editor:
        make_groups(apps, editor)
    found = in_database()
    assert found["support"] == set()
    assert found["operator"] == set(ROLES["operator"])


def test_nobody_but_finance_books_and_nobody_but_reviewers_reveal():
    money = {"billing.book_credit", "billing.approve_credit", "billing.add_priceplan",
             "billing.change_billingperiod", "billing.export_ledger", "streaming.credit_incident"}  # fmt: skip
    content = {"streaming.reveal_content", "streaming.purge_content"}
    for role, permissions in ROLES.items():
        assert bool(money & set(permissions)) is (role == "finance"), role
        assert bool(content & set(permissions)) is (role == "content_reviewer"), role
        assert ("streaming.all_tenants" in permissions) is (role != "tenant_admin")


def test_a_role_is_given_and_taken(alice):
    assert "They see all tenants." in call("give", "support", "alice")
    call("give", "support", "alice")  # again: nothing new
    alice.refresh_from_db()
    assert alice.is_staff
    assert User.objects.get().has_perm("streaming.stop_session")
    assert "support" in call()
    call("take", "support", "alice")
    call("take", "support", "alice")
    assert not User.objects.get().has_perm("streaming.stop_session")
    assert announced() == [
        ("staff.role_given", "user:alice", {"role": "support"}),
        ("staff.role_taken", "user:alice", {"role": "support"}),
    ]


def test_a_superuser_is_told_to_be_one(alice):
    """Whoever is to do no more than a role allows must not be one."""
    alice.is_superuser = True
    alice.save()
    told = call("give", "support", "alice")
    assert "They are a superuser: they may do everything, whatever their roles." in told
    assert "superuser, support" in call()


def test_a_tenant_admin_sees_the_tenants_that_are_named(alice):
    tenants = [Tenant.objects.create(name=name) for name in ("acme", "globex", "initech")]
    arguments = ["--tenant", "acme", "--tenant", "globex"]
    assert "these tenants: acme, globex." in call("give", "tenant_admin", "alice", *arguments)
    assert tenants_of(User.objects.get()) == {tenants[0].pk, tenants[1].pk}
    assert "acme, globex" in call("list")
    assert announced()[1:] == [
        ("staff.tenant_given", "user:alice", {"tenant": "acme"}),
        ("staff.tenant_given", "user:alice", {"tenant": "globex"}),
    ]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["give", "boss", "alice"], "There is no role boss"),
        (["give", "support", "nobody"], "There is no user nobody"),
        (["give", "tenant_admin", "alice", "--tenant", "none"], "There is no tenant none"),
        (["give", "content_reviewer", "alice", "--tenant", "acme"], "sees all tenants"),
        (["take", "boss", "alice"], "There is no role boss"),
        (["give", "support"], "Say which role"),
    ],
)
def test_what_is_not_there_is_refused_and_nothing_is_given(alice, arguments, why):
    with pytest.raises(CommandError, match=why):
        call(*arguments)
    assert not alice.groups.exists()
    assert not TenantMember.objects.exists()
    assert announced() == []
