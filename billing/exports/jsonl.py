"""JSON Lines: an object a ledger line, keys in the order of the columns, decimals as text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import orjson

from billing.core.chain import moment
from billing.core.money import plain
from billing.exports.columns import COLUMNS, Row
from billing.exports.formats import Part, Writer

_NAMES = [column.name for column in COLUMNS]


class JsonLinesWriter(Writer):
    """One file. Text is as it was stored: nothing here is a cell of a spreadsheet."""

    def __init__(self, directory: Path, stem: str) -> None:
        super().__init__(directory, stem)
        self._path = directory / f"{stem}.jsonl"
        self._file = self._path.open("xb")
        self._rows = 0

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            line = dict(zip(_NAMES, row, strict=True))
            self._file.write(
                orjson.dumps(
                    line,
                    default=_spelled,
                    option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATETIME,
                )
            )
        self._rows += len(rows)

    def finish(self) -> None:
        self._file.close()
        self.parts.append(Part(self._path, self._rows))

    def abandon(self) -> None:
        self._file.close()


def _spelled(value: object) -> str:
    if isinstance(value, Decimal):
        return plain(value)
    if isinstance(value, datetime):
        return moment(value)
    raise TypeError(f"{type(value).__name__} has no place in an export")
