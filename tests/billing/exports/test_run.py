"""An export is whole, remembered and audited, or nothing of it is there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from billing.errors import ExportFailed, ExportRefused
from billing.exports import store
from billing.exports.formats import FORMATS
from billing.exports.run import export, make, request
from billing.models import AuditEntry, BillingPeriod, Export, PeriodTotal
from billing.services import heads
from tests.billing.exports import books, read_back
from tests.billing.rows import add_tenant

pytestmark = pytest.mark.django_db


def make_csv(**arguments) -> Export:
    return export(**{"period_name": "2026-11", "format": "csv", "actor": "user:pat", **arguments})


def directories(data_dir) -> list[str]:
    return [path.name for path in (data_dir / "exports").iterdir()]


def test_the_manifest_says_what_there_is(data_dir):
    tenants = books.a_month()
    head = heads.publish()
    made = make_csv(tenant_id=tenants["acme"].pk)
    directory = data_dir / "exports" / str(made.pk)
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest == made.manifest
    (file,) = manifest["files"]
    content = (directory / file["name"]).read_bytes()
    assert file == {
        "name": "ledger-2026-11-acme.csv", "rows": 10, "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }  # fmt: skip
    lines = read_back.lines(made)
    assert manifest == manifest | {
        "export": str(made.pk), "schema_version": 1, "format": "csv", "rows": 10, "closed": False,
        "filter": {"period": "2026-11", "account": "acme"}, "generated_by": "user:pat",
        "tokens": {
            name: sum(int(line[f"billed_{name}_tokens"] or 0) for line in lines)
            for name in ("input", "cached_input", "output")
        },
        "audit_head": {"seq": head.seq, "hash": head.hash_hex, "signature": head.signature},
    }  # fmt: skip
    assert heads.of_manifest(manifest).is_ours
    (account,) = manifest["accounts"]
    assert (account["name"], account["closed_at"], account["amounts"]) == (
        "acme",
        None,
        manifest["amounts"],
    )
    assert oct(directory.stat().st_mode & 0o777) == "0o700"
    assert (made.rows, made.error, made.requested_by) == (10, "", "user:pat")
    assert made.finished_at is not None


def test_it_is_audited_with_its_checksums(data_dir):
    books.a_month()
    made = make_csv()
    entry = AuditEntry.objects.get(action="export.made")
    assert (entry.actor, entry.subject, entry.tenant_id) == ("user:pat", f"export:{made.pk}", None)
    told = json.loads(entry.data)
    assert told["files"] == {file["name"]: file["sha256"] for file in made.manifest["files"]}
    written = store.path_of(made.pk, "manifest.json").read_bytes()
    assert told["manifest_sha256"] == hashlib.sha256(written).hexdigest()


def test_a_closed_period_has_rounded_totals(data_dir):
    tenants = books.a_month()
    for period in BillingPeriod.objects.filter(tenant=tenants["beta"]):
        books.close(period)
    made = make_csv(tenant_id=tenants["beta"].pk)
    assert made.manifest["closed"]
    (account,) = made.manifest["accounts"]
    total = PeriodTotal.objects.get()
    assert Decimal(account["rounded"]["USD"]) == total.rounded
    assert Decimal(account["amounts"]["USD"]) == total.exact
    assert not make_csv().manifest["closed"]  # acme's is open
    summed = [Decimal(one["amounts"].get("USD", 0)) for one in make_csv().manifest["accounts"]]
    assert sum(summed) == Decimal(make_csv().manifest["amounts"]["USD"])


def test_a_ledger_that_is_not_what_was_closed_is_not_exported(data_dir):
    books.charge()
    period = BillingPeriod.objects.get()
    books.close(period)
    books.slip_in()
    with pytest.raises(ExportFailed, match=r"was closed with .* in 1 lines"):
        make_csv()
    assert "was closed with" in Export.objects.get().error
    assert directories(data_dir) == []
    assert not AuditEntry.objects.filter(action="export.made").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "pdf"}, "no format; there are csv, jsonl, xlsx, parquet, focus"),
        ({"period_name": "2026-13"}, "no month"),
        ({"period_name": "november"}, "no month"),
        ({"period_name": "2031-01"}, "no such period"),
    ],
)
def test_what_there_is_not_is_refused(data_dir, arguments, message):
    books.charge()
    with pytest.raises(ExportRefused, match=message):
        make_csv(**arguments)
    assert not Export.objects.exists()


def test_a_tenant_without_the_period_is_refused(data_dir):
    books.charge()
    with pytest.raises(ExportRefused, match="beta"):
        make_csv(tenant_id=add_tenant("beta").pk)


def test_a_period_without_lines_is_an_export_without_rows(data_dir):
    books.periods.period_at(add_tenant().pk, books.NOVEMBER)
    for format in FORMATS:
        made = make_csv(format=format)
        assert (made.rows, read_back.lines(made), made.manifest["amounts"]) == (0, [], {})


@contextmanager
def no_room(bytes_: int):
    """Files cannot grow beyond it, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("room", [0, 6000])
def test_without_room_nothing_is_left(data_dir, format, room):
    for _ in range(30):
        books.charge()
    with no_room(room), pytest.raises(ExportFailed, match="no room"):
        make_csv(format=format)
    failed = Export.objects.get()
    assert (failed.finished_at, failed.rows) == (None, 0)
    assert "no room" in failed.error
    assert directories(data_dir) == []
    assert make_csv(format=format).rows == 30


def test_a_directory_that_cannot_be_written(data_dir):
    books.charge()
    (data_dir / "exports").write_text("in the way")
    with pytest.raises(ExportFailed, match="cannot be written"):
        make_csv()
    assert "cannot be written" in Export.objects.get().error


def test_an_interruption_leaves_nothing(data_dir):
    books.charge()

    def interrupt(done: int, expected: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_csv(progress=interrupt)
    assert directories(data_dir) == []
    assert Export.objects.get().error == "Broke off: KeyboardInterrupt()"


def test_what_killed_processes_left_is_swept_up(data_dir):
    books.charge()
    killed, published, at_work = (
        request(period_name="2026-11", format="csv", actor="user:pat") for _ in range(3)
    )
    waiting = request(period_name="2026-11", format="csv", actor="user:pat")
    root = store.root()
    for path in (
        root / f".unfinished-{killed.pk}",
        root / str(published.pk),
        root / f".unfinished-{at_work.pk}",
    ):
        path.mkdir(parents=True)
        (path / "ledger.csv").write_text("half")
        os.utime(path, (time.time() - 3600,) * 2)
    holder = os.open(root / f".unfinished-{at_work.pk}", os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    made = make_csv()
    assert make(at_work).finished_at is None  # as it would be by a message that comes twice
    os.close(holder)
    assert sorted(directories(data_dir)) == sorted([str(made.pk), f".unfinished-{at_work.pk}"])
    errors = {export.pk: export.error for export in Export.objects.all()}
    assert "killed" in errors[killed.pk]
    assert "killed" in errors[published.pk]
    assert errors[at_work.pk] == errors[waiting.pk] == errors[made.pk] == ""
    # A task that is delivered again makes it after all, and once.
    again = make(Export.objects.get(pk=killed.pk))
    assert (again.error, again.rows) == ("", 1)
    finished_at = again.finished_at
    assert make(again).finished_at == finished_at


def test_names_of_tenants_are_no_paths(data_dir):
    tenant = add_tenant("../evil")  # its validator refuses that, and the database would not
    books.charge(tenant)
    made = make_csv(tenant_id=tenant.pk)
    assert made.manifest["files"][0]["name"] == f"ledger-2026-11-{tenant.pk}.csv"


def test_months_are_the_tenants_own(data_dir):
    tokyo = add_tenant("tokyo")
    books.periods.account_of(tokyo.pk)
    type(books.periods.account_of(tokyo.pk)).objects.filter(pk=tokyo.pk).update(
        time_zone="Asia/Tokyo"
    )
    books.charge(tokyo, at=datetime(2026, 10, 31, 15, 30, tzinfo=UTC))
    (line,) = read_back.lines(make_csv())
    assert line["period"] == "2026-11"
    assert line["period_start"] == "2026-10-31T15:00:00.000000Z"
