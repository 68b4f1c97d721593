"""People and roles in the admin: what is given and taken there is audited."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.urls import reverse

from streaming.models import OutboxMessage

pytestmark = pytest.mark.django_db

PASSWORD = "a password of some length"


def announced() -> list[tuple[str, str, dict[str, Any]]]:
    rows = OutboxMessage.objects.filter(kind="audit").order_by("id").values_list("data", flat=True)
    return [(row["action"], row["subject"], row["data"]) for row in rows]


def test_what_is_done_to_people(admin_client):
    new = {
        "username": "kim",
        "usable_password": "true",
        "password1": PASSWORD,
        "password2": PASSWORD,
    }
    assert admin_client.post(reverse("admin:auth_user_add"), new).status_code == 302
    kim = User.objects.get(username="kim")
    support, finance = Group.objects.get(name="support"), Group.objects.get(name="finance")
    kim.groups.set([finance])
    joined = {"date_joined_0": "2026-11-01", "date_joined_1": "10:00:00"}
    changed = {
        "username": "kim",
        "is_active": "on",
        "is_staff": "on",
        "first_name": "Kim",
        **joined,
    }
    url = reverse("admin:auth_user_change", args=[kim.pk])
    assert admin_client.post(url, {**changed, "groups": [support.pk]}).status_code == 302
    password = {"usable_password": "true", "password1": PASSWORD * 2, "password2": PASSWORD * 2}
    url = reverse("admin:auth_user_password_change", args=[kim.pk])
    assert "errorlist" in admin_client.post(url, {**password, "password2": "other"}).text
    assert admin_client.post(url, password).status_code == 302
    admin_client.post(reverse("admin:auth_user_delete", args=[kim.pk]), {"post": "yes"})
    told = announced()
    assert [one[:2] for one in told] == [
        (f"staff.{did}", "user:kim")
        for did in ("create", "change", "groups", "password_set", "remove")
    ]
    assert told[1][2]["is_staff"] == "False → True"
    assert told[2][2] == {"given": "support", "taken": "finance"}
    assert PASSWORD not in str(told)
    assert "Kim" not in str(told)


def test_what_is_done_to_roles(admin_client):
    group = Group.objects.get(name="support")
    kept = list(group.permissions.exclude(codename="stop_session").values_list("pk", flat=True))
    more = Permission.objects.get(codename="purge_content").pk
    url = reverse("admin:auth_group_change", args=[group.pk])
    data = {"name": "support", "permissions": [*kept, more]}
    assert admin_client.post(url, data).status_code == 302
    assert announced()[-1] == (
        "role.permissions", "role:support",
        {"given": "streaming.purge_content", "taken": "streaming.stop_session"},
    )  # fmt: skip


def test_a_refused_login_is_a_line_without_what_was_typed(client, caplog):
    with caplog.at_level(logging.WARNING, "gateway_project.logins"):
        client.post(
            "/admin/login/", {"username": "hunter2", "password": "x"}, REMOTE_ADDR="192.0.2.7"
        )
    (line,) = caplog.records
    assert (line.message, line.peer) == ("a login was refused", "192.0.2.7")
    assert "hunter2" not in str(line.__dict__)
