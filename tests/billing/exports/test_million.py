"""A million lines in constant memory. ``make soak`` shows the figures; docs/exports.md has them."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import openpyxl
import polars
import pytest

from billing.core.money import plain
from billing.exports.formats import FORMATS
from tests.billing.exports.million import LINES
from tests.stack import ROOT, Stack

PEAK_MIB = 200


def month(stack: Stack, lines: int) -> None:
    stack.manage(
        "shell", "-c",
        "from tests.billing.exports import books; from tests.billing.rows import *; "
        "add_plan(**books.ODD); books.periods.period_at(add_tenant().pk, books.NOVEMBER)",
    )  # fmt: skip
    ((period, tenant),) = stack.sql("SELECT id, tenant_id FROM billing_billingperiod")
    stack.sql(LINES.format(lines=lines, period=period, tenant=tenant))
    stack.sql("ANALYZE")


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
        f"{format}: {count} lines, {figures['seconds']:.0f} s, peak {figures['peak']} MiB, "
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
    book = openpyxl.load_workbook(path, read_only=True)
    sheet = book.active
    sheet.reset_dimensions()
    return sum(1 for _ in sheet.iter_rows(max_col=1))
