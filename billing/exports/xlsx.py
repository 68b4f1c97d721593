"""Excel workbooks: below its limit of rows each, exact amounts as text.

A number in a workbook is a binary double and Excel shows 15 digits of it, so exact decimals are
text. ``amount_number`` repeats the amount as a number, for sums and pivot tables on the spot.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from xlsxwriter import Workbook
from xlsxwriter.exceptions import XlsxFileError
from xlsxwriter.worksheet import Worksheet

from billing.exports.cells import SPELLED
from billing.exports.columns import COLUMNS, SCHEMA_VERSION, Kind, Row
from billing.exports.formats import Part, Writer

ROW_LIMIT = 1_048_576
"""Excel's, heading included."""
ROWS_PER_FILE = 500_000
"""A sheet's XML has to stay below 4 GiB, or Excel offers to repair the file."""

NUMBER_COLUMN = "amount_number"
_AMOUNT = next(place for place, column in enumerate(COLUMNS) if column.name == "amount")
_ALWAYS_THE_SAME = datetime(2000, 1, 1)  # noqa: DTZ001  (a workbook's times have no zone)


class XlsxWriter(Writer):
    """As many files as it takes, numbered if there is more than one."""

    def __init__(self, directory: Path, stem: str, rows_per_file: int = ROWS_PER_FILE) -> None:
        super().__init__(directory, stem)
        if not 0 < rows_per_file < ROW_LIMIT:
            raise ValueError(f"a sheet has {ROW_LIMIT} rows, the heading included")
        self._limit = rows_per_file
        self._begin()

    def _begin(self) -> None:
        self._path = self.directory / f"{self.stem}-{len(self.parts) + 1:03}.xlsx"
        self._rows = 0
        self._book = Workbook(
            str(self._path),
            # Rows go to a file at once: beside the workbook, where there is room for it anyway.
            {"constant_memory": True, "tmpdir": str(self.directory)},
        )
        self._book.set_properties(
            {"title": f"{self.stem}, schema {SCHEMA_VERSION}", "created": _ALWAYS_THE_SAME}
        )
        self._sheet: Worksheet = self._book.add_worksheet("Ledger")
        self._sheet.freeze_panes(1, 0)
        bold = self._book.add_format({"bold": True})
        for place, name in enumerate([*(column.name for column in COLUMNS), NUMBER_COLUMN]):
            self._sheet.write_string(0, place, name, bold)

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if self._rows == self._limit:
                self._close()
                self._begin()
            self._rows += 1
            self._write_row(self._rows, row)

    def _write_row(self, line: int, row: Row) -> None:
        sheet = self._sheet
        for place, (column, value) in enumerate(zip(COLUMNS, row, strict=True)):
            if value is None:
                continue
            if column.kind is Kind.INTEGER:
                sheet.write_number(line, place, value)
            else:
                sheet.write_string(line, place, SPELLED[column.kind](value))
        sheet.write_number(line, len(COLUMNS), row[_AMOUNT])

    def _close(self) -> None:
        try:
            self._book.close()
        except XlsxFileError as error:
            # XlsxWriter wraps what the system said: that is what the caller has to know.
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None
        self.parts.append(Part(self._path, self._rows))

    def finish(self) -> None:
        self._close()
        if len(self.parts) == 1:
            part = self.parts[0]
            self.parts = [Part(part.path.rename(self.directory / f"{self.stem}.xlsx"), part.rows)]

    def abandon(self) -> None:
        for sheet in self._book.worksheets():
            sheet._opt_close()
