"""Exports as their readers see them: lines by id and currency with exact amounts."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import polars
from django.conf import settings

from billing.core.money import EXACT
from billing.models import Export


def files(export: Export) -> list[Path]:
    """Its data files, in order."""
    directory = settings.DATA_DIR / "exports" / str(export.pk)
    return [directory / file["name"] for file in export.manifest["files"]]


def lines(export: Export) -> list[dict[str, Any]]:
    """The rows of an export, as dictionaries of what the format gives."""
    readers = {
        "csv": _csv, "focus": _csv, "jsonl": _jsonl, "xlsx": _xlsx, "parquet": _parquet,
    }  # fmt: skip
    return [line for path in files(export) for line in readers[export.format](path)]


def sums(export: Export) -> dict[str, Decimal]:
    """By currency, added up from the file."""
    code, amount = (
        ("BillingCurrency", "BilledCost") if export.format == "focus" else ("currency", "amount")
    )
    result: dict[str, Decimal] = {}
    for line in lines(export):
        value = line[amount]
        assert isinstance(value, str | Decimal), "a float"
        result[line[code]] = EXACT.add(result.get(line[code], Decimal(0)), Decimal(value))
    return result


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, strict=True)


def _jsonl(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            yield json.loads(line, parse_float=_no_floats)


def _no_floats(text: str) -> None:
    raise AssertionError(f"a float: {text}")


def _xlsx(path: Path) -> Iterator[dict[str, Any]]:
    sheet = openpyxl.load_workbook(path, read_only=True).active
    assert sheet is not None
    rows = sheet.iter_rows(values_only=True)
    heading = next(rows)
    for row in rows:
        yield dict(zip(heading, row, strict=True))


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    yield from polars.read_parquet(path).to_dicts()
