"""Who may download an export or read a statement, and what they get."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tracemalloc
import warnings

import httpx
import psutil
import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from billing.exports import store
from billing.exports.formats import CONTENT_TYPES, FORMATS
from billing.exports.run import export
from billing.models import AuditEntry, BillingPeriod, Export
from billing.views import Download
from streaming.core.ids import uuid7
from tests.billing.exports import books

ROOM = 16 * 2**20


@pytest.fixture
def pat(client: Client, db) -> User:
    """Staff, logged in, with the permission."""
    user = User.objects.create_user("pat", is_staff=True)
    wanted = ["export_ledger", "all_tenants"]
    user.user_permissions.set(Permission.objects.filter(codename__in=wanted))
    client.force_login(user)
    return user


def make(format: str = "csv") -> Export:
    return export(period_name="2026-11", format=format, actor="user:sam")


def urls(made: Export) -> list[str]:
    return [
        reverse("billing:export-file", args=[made.pk, made.manifest["files"][0]["name"]]),
        reverse("billing:export-file", args=[made.pk, "manifest.json"]),
        reverse("billing:statement", args=[BillingPeriod.objects.get().pk]),
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_comes_whole_with_its_checksum(client, pat, format):
    books.charge()
    made = make(format)
    (file,) = made.manifest["files"]
    response = client.get(urls(made)[0])
    content = b"".join(response.streaming_content)
    assert content == store.path_of(made.pk, file["name"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == file["sha256"]
    assert response["Content-Type"] == CONTENT_TYPES[format]
    assert response["Content-Disposition"] == f'attachment; filename="{file["name"]}"'
    assert response["Content-Length"] == str(file["bytes"])
    assert response["ETag"] == f'"{file["sha256"]}"'
    digest = base64.b64encode(bytes.fromhex(file["sha256"])).decode()
    assert response["Repr-Digest"] == f"sha-256=:{digest}:"
    assert response["Cache-Control"] == "private, no-store"
    entry = AuditEntry.objects.get(action="export.downloaded")
    assert (entry.actor, entry.subject) == ("user:pat", f"export:{made.pk}")
    assert file["sha256"] in entry.data


def test_the_manifest_comes_too(client, pat):
    books.charge()
    made = make()
    response = client.get(urls(made)[1])
    assert response["Content-Type"] == "application/json"
    assert b"".join(response.streaming_content).startswith(b'{\n  "export"')


def test_strangers_have_to_log_in(client, db):
    books.charge()
    for url in urls(make()):
        response = client.get(url)
        assert response.status_code == 302
        assert response["Location"].startswith("/admin/login/")


@pytest.mark.parametrize(("is_staff", "status"), [(True, 403), (False, 302)])
def test_staff_needs_the_permission_and_others_are_no_staff(client, db, is_staff, status):
    books.charge()
    user = User.objects.create_user("kim", is_staff=is_staff)
    if not is_staff:
        user.user_permissions.add(Permission.objects.get(codename="export_ledger"))
    client.force_login(user)
    made = make()
    for url in urls(made):
        assert client.get(url).status_code == status
        assert client.post(url).status_code == 405
    assert not AuditEntry.objects.filter(actor="user:kim").exists()


@pytest.mark.parametrize(
    "name", ["../secret", "..%2Fsecret", "%2e%2e/secret", "other.csv", "..", ".", "", "secret%00"]
)
def test_only_what_the_export_lists_is_a_file(client, pat, data_dir, name):
    books.charge()
    made = make()
    (data_dir / "exports" / "secret").write_text("secret")
    (data_dir / "exports" / str(made.pk) / "other.csv").write_text("not listed")
    assert client.get(f"/billing/exports/{made.pk}/{name}").status_code == 404


def test_what_is_not_there_is_not_found(client, pat):
    books.charge()
    made = make()
    assert client.get(f"/billing/exports/{uuid7()}/ledger.csv").status_code == 404
    assert client.get("/billing/statements/12345/").status_code == 404
    url = urls(made)[0]
    store.withdraw(made.pk)  # as on a machine that has not made it
    assert client.get(url).status_code == 404
    Export.objects.update(finished_at=None)
    assert client.get(url).status_code == 404


def test_the_statement_needs_nothing_from_elsewhere(client, pat):
    books.charge()
    response = client.get(urls(make())[2])
    page = response.text
    assert response.status_code == 200
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import|\son\w+=|\sstyle=", page)
    policy = response["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert "@media print" in style[1]
    entry = AuditEntry.objects.get(action="statement.viewed")
    assert entry.actor == "user:pat"


async def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 4 * ROOM)
    response = Download(path.open("rb"), filename="large")
    tracemalloc.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        size = 0
        async for block in response:
            size += len(block)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    response.close()
    assert size == 4 * ROOM
    assert peak < ROOM / 4


def test_a_gateway_sends_a_large_file_as_the_reader_takes_it(start_stack):
    stack = start_stack(
        env={"DJANGO_SUPERUSER_USERNAME": "root", "DJANGO_SUPERUSER_PASSWORD": "only for tests",
             "DJANGO_SUPERUSER_EMAIL": "root@example.com"}
    )  # fmt: skip
    stack.manage("createsuperuser", "--noinput")
    export_id, size = uuid7(), 12 * ROOM
    directory = stack.directory / "data" / "exports" / str(export_id)
    directory.mkdir(parents=True)
    with (directory / "ledger.csv").open("wb") as file:
        os.truncate(file.fileno(), size)
    stack.sql(
        "INSERT INTO billing_export (id, period_name, format, rows, manifest, requested_by, created_at, "
        "finished_at, error) VALUES (%s, '2026-11', 'csv', 1, %s, 'system', now(), now(), '')",
        export_id,
        '{"files": [{"name": "ledger.csv", "sha256": "' + "0" * 64 + '"}]}',
    )
    with httpx.Client(base_url=stack.gateway().url, timeout=30) as client:
        login = "/admin/login/"
        token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', client.get(login).text)
        assert token
        form = {"username": "root", "password": "only for tests", "csrfmiddlewaretoken": token[1]}
        assert (
            client.post(login, data=form, headers={"Referer": stack.gateway().url}).status_code
            == 302
        )
        process = psutil.Process(stack.gateway().pid)
        before, most, taken = process.memory_info().rss, 0, 0
        with client.stream("GET", f"/billing/exports/{export_id}/ledger.csv") as response:
            assert response.status_code == 200
            for block in response.iter_bytes(4 * 2**20):
                taken += len(block)
                most = max(most, process.memory_info().rss)
    assert taken == size
    assert most - before < 3 * ROOM, (
        f"{(most - before) / 2**20:.0f} MiB for a file of {size / 2**20:.0f}"
    )
