"""CSV by RFC 4180: UTF-8, a heading, CRLF, quotes where they are needed."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from billing.exports.cells import SPELLED
from billing.exports.columns import COLUMNS, Row
from billing.exports.formats import Part, Writer

_SPELLED = [SPELLED[column.kind] for column in COLUMNS]


class CsvWriter(Writer):
    """One file, one row a ledger line."""

    heading: Sequence[str] = [column.name for column in COLUMNS]

    def __init__(self, directory: Path, stem: str) -> None:
        super().__init__(directory, stem)
        self._path = directory / f"{stem}.csv"
        self._file = self._path.open("x", encoding="utf-8", newline="")
        self._csv = csv.writer(self._file)
        self._csv.writerow(self.heading)
        self._rows = 0

    def write(self, rows: Sequence[Row]) -> None:
        lines = [cells for row in rows for cells in self.cells(row)]
        self._csv.writerows(lines)
        self._rows += len(lines)

    def cells(self, row: Row) -> Iterable[Sequence[str]]:
        """The lines that a row makes, as text."""
        yield [
            "" if value is None else spelled(value)
            for spelled, value in zip(_SPELLED, row, strict=True)
        ]

    def finish(self) -> None:
        self._file.close()
        self.parts.append(Part(self._path, self._rows))

    def abandon(self) -> None:
        self._file.close()
