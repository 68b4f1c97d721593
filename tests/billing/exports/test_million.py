"""A million lines in constant memory. ``make soak`` shows the figures; docs/exports.md has them."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from decimal import Decimal
from pathlib import Path

import polars
import pytest

from billing.core.money import plain
from billing.exports.formats import FORMATS
from tests.stack import ROOT, Stack

PEAK_MIB = 200


COUNT = "number % 4096"  # output tokens of a line
NEW_ID = "('01a22a94-e9da-7000-8000-' || lpad(to_hex(number), 12, '0'))::uuid"


def month(stack: Stack, lines: int) -> None:
    """One line as settlements book it, and the others after its pattern, by the database itself."""
    stack.manage(
        "shell", "-c",
        "from tests.billing.exports import books; "
        "books.charge(output=1, prompt=100, cached=40, model='llama-3.3-70b-instruct')",
    )  # fmt: skip
    counts = dict.fromkeys(
        ("log_tokens", "sent_tokens", "delivered_tokens", "compensated_tokens", "generated_tokens"),
        COUNT,
    )
    amount = (
        "(SELECT (60 * input_per_million + 40 * cached_input_per_million "
        f"+ {COUNT} * output_per_million) / 1000000 FROM billing_priceplan)"
    )
    copy(stack, lines, "billing_usagerecord", session_id=NEW_ID, **counts)
    copy(
        stack, lines, "billing_settlement", id="t.id + number", usage_id=NEW_ID, to_tokens=COUNT,
        output_tokens=COUNT, amount=amount, cost_centre="'team-' || number % 50",
        occurred_at="t.occurred_at + number * interval '1 second'", **counts,
    )  # fmt: skip
    copy(
        stack, lines, "billing_ledgerentry", id=NEW_ID, settlement_id="t.settlement_id + number",
        session_id=NEW_ID, amount=amount, cost_centre="'team-' || number % 50",
        idempotency_key="'settlement:' || number",
    )  # fmt: skip
    stack.sql("ANALYZE")


def copy(stack: Stack, lines: int, table: str, **columns: str) -> None:
    """Make one row ``lines`` rows: the same but for ``columns``, which are SQL over t and number."""
    names = [
        name
        for (name,) in stack.sql(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s", table
        )
    ]
    values = [columns.get(name, f"t.{name}") for name in names]
    stack.sql(
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} "
        f"FROM {table} t, generate_series(1, {lines - 1}) AS number"
    )


def run(stack: Stack, format: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "tests.billing.exports.million", format],
        cwd=ROOT, env=stack.env(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    directory = stack.directory / "data" / "exports" / figures["id"]
    manifest = json.loads((directory / "manifest.json").read_text())
    ((count, total),) = stack.sql("SELECT count(*), sum(amount) FROM billing_ledgerentry")
    assert manifest["rows"] == count
    assert manifest["amounts"] == {"EUR": plain(Decimal(total))}
    figures["files"] = [directory / file["name"] for file in manifest["files"]]
    figures["rows"] = sum(file["rows"] for file in manifest["files"])
    megabytes = sum(file["bytes"] for file in manifest["files"]) / 1e6
    print(
        f"{format}: {count} lines, {figures['seconds']:.0f} s ({figures['cpu']:.0f} s of CPU), peak {figures['peak']} MiB, "
        f"{len(figures['files'])} files, {megabytes:.0f} MB"
    )
    return figures


def test_a_small_share_of_it(start_stack):
    stack = start_stack(gateways=0)
    month(stack, 10_000)
    for format in ("csv", "parquet"):
        figures = run(stack, format)
        assert figures["peak"] < PEAK_MIB, format


@pytest.mark.soak
def test_a_million(start_stack, capsys):
    stack = start_stack(gateways=0)
    month(stack, 1_000_000)
    with capsys.disabled():
        print()
        figures = {format: run(stack, format) for format in FORMATS}
    for format, made in figures.items():
        assert made["peak"] < PEAK_MIB, format
    ((total,),) = stack.sql("SELECT sum(amount) FROM billing_ledgerentry")
    workbooks = figures["xlsx"]["files"]
    assert [rows_of(path) for path in workbooks] == [500_001, 500_001]
    (parquet,) = figures["parquet"]["files"]
    assert polars.scan_parquet(parquet).select(polars.col("amount").sum()).collect().item() == total


def rows_of(path: Path) -> int:
    """Rows in a workbook's sheet, counted in its XML: openpyxl would take minutes."""
    with zipfile.ZipFile(path).open("xl/worksheets/sheet1.xml") as sheet:
        count, kept = 0, b""
        while block := sheet.read(2**20):
            text = kept + block
            count += text.count(b"<row ")
            kept = text[-4:]
    return count
