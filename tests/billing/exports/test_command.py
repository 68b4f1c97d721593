"""``manage.py export_billing``."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from billing.exports.formats import FORMATS
from billing.models import AuditEntry, Export
from tests.billing.exports import books
from tests.billing.rows import add_tenant
from tests.stack import ROOT


def run(*arguments: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("export_billing", "--period", "2026-11", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


@pytest.mark.django_db
def test_it_prints_the_files_and_their_checksums(data_dir):
    books.a_month()
    out, err = run("--format", "csv")
    checksum, path = out.strip().split("  ")
    assert Path(path).is_relative_to(data_dir / "exports")
    assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == checksum
    assert "16 lines" in err
    assert "The period is open" in err
    made = Export.objects.get()
    assert made.requested_by == AuditEntry.objects.get(action="export.made").actor
    assert made.requested_by.startswith("command:")


@pytest.mark.django_db
def test_output_has_copies_that_sha256sum_accepts(tmp_path):
    books.a_month()
    target = tmp_path / "there" / "and then"
    for _ in range(2):  # the second time over the first
        out, _ = run("--format", "xlsx", "--tenant", "acme", "--output", str(target))
    names = sorted(path.name for path in target.iterdir())
    assert names == ["ledger-2026-11-acme.xlsx", "ledger-2026-11-acme.xlsx.manifest.json"]
    checked = subprocess.run(
        ["sha256sum", "--check"], input=out, text=True, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    manifest = json.loads((target / names[1]).read_text())
    assert manifest["filter"] == {"period": "2026-11", "account": "acme"}


@pytest.mark.django_db
def test_in_one_directory_every_format_has_its_manifest(tmp_path):
    books.a_month()
    for format in FORMATS:
        run("--format", format, "--output", str(tmp_path))
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("*.manifest.json")]
    assert sorted(manifest["format"] for manifest in manifests) == sorted(FORMATS)
    for manifest in manifests:
        for file in manifest["files"]:
            written = (tmp_path / file["name"]).read_bytes()
            assert hashlib.sha256(written).hexdigest() == file["sha256"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "csv", "--tenant", "nobody"], "no tenant 'nobody'"),
        (["--format", "pdf"], "invalid choice"),
        (["--format", "csv", "--period", "2020-01"], "no such period"),
        (["--format", "csv", "--period", "last"], "no month"),
        (["--format", "csv", "--output", "/dev/null/x"], "/dev/null/x"),
    ],
)
def test_errors_say_what_is_wrong(arguments, message):
    books.charge(add_tenant("acme"))
    with pytest.raises(CommandError, match=message):
        run(*arguments)
    assert not Export.objects.exists()


def test_the_bar_is_for_terminals(start_stack):
    """Real processes: one whose stderr is a terminal, one whose is not."""
    stack = start_stack(gateways=0)
    stack.manage("shell", "-c", "from tests.billing.exports import books; books.a_month()")
    command = [
        sys.executable, "manage.py", "export_billing", "--period", "2026-11", "--format", "jsonl",
    ]  # fmt: skip
    terminal, other_end = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    done = subprocess.run(
        command, cwd=ROOT, env=stack.env(), stdout=subprocess.PIPE, stderr=other_end, check=True
    )
    os.close(other_end)
    shown = "".join(read(terminal))
    os.close(terminal)
    assert "100%" in shown
    assert done.stdout.count(b"\n") == 1
    plain = subprocess.run(command, cwd=ROOT, env=stack.env(), capture_output=True, check=True)
    assert b"%" not in plain.stderr


def read(terminal: int) -> Iterator[str]:
    """All that was written to the other end, which nobody has open any more."""
    while True:
        try:
            yield os.read(terminal, 4096).decode(errors="replace")
        except OSError:  # how Linux says that it is over
            return
