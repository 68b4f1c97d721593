"""Workbooks stay below the limit of rows."""

from __future__ import annotations

import openpyxl
import pytest

from billing.exports.rows import Source
from billing.exports.xlsx import ROW_LIMIT, ROWS_PER_FILE, XlsxWriter
from billing.models import BillingPeriod, LedgerEntry
from tests.billing.exports import books

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("rows_per_file", "sizes"), [(5, [5, 5, 2]), (6, [6, 6]), (12, [12])])
def test_more_lines_than_a_workbook_takes_make_several(tmp_path, rows_per_file, sizes):
    for _ in range(12):
        books.charge()
    with XlsxWriter(tmp_path, "ledger", rows_per_file) as writer:
        for rows in Source(list(BillingPeriod.objects.all())).batches():
            writer.write(rows)
    assert [part.rows for part in writer.parts] == sizes
    ids = []
    for part in writer.parts:
        rows = list(openpyxl.load_workbook(part.path).active.iter_rows(values_only=True))
        assert rows[0][1] == "line_id"
        ids += [row[1] for row in rows[1:]]
    assert ids == [
        str(pk) for pk in LedgerEntry.objects.order_by("pk").values_list("pk", flat=True)
    ]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == (
        ["ledger.xlsx"]
        if len(sizes) == 1
        else [f"ledger-{n + 1:03}.xlsx" for n in range(len(sizes))]
    )


def test_the_limit_is_excels(tmp_path):
    assert ROWS_PER_FILE < ROW_LIMIT
    with pytest.raises(ValueError, match="heading"):
        XlsxWriter(tmp_path, "ledger", ROW_LIMIT)
