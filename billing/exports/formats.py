"""The formats there are, and what a writer of one has to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from billing.errors import ExportRefused
from billing.exports.columns import Row

CONTENT_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "parquet": "application/vnd.apache.parquet",
    "focus": "text/csv; charset=utf-8",
}
FORMATS = tuple(CONTENT_TYPES)


@dataclass(frozen=True, slots=True)
class Part:
    """One file of an export; ``rows`` without its heading."""

    path: Path
    rows: int


class Writer(ABC):
    """Writes batches of rows into one or more files ``<stem>…`` of a directory.

    The same rows give the same bytes: no times of making, no random names. A context manager; after
    an error its files are closed, and worth nothing.
    """

    def __init__(self, directory: Path, stem: str) -> None:
        self.directory = directory
        self.stem = stem
        self.parts: list[Part] = []

    @abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Add rows. Raises ``OSError``."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the files and list them in ``parts``. Raises ``OSError``."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go of whatever is open. Raises ``OSError``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        else:
            with suppress(OSError):  # no room for what buffers hold either: the first error counts
                self.abandon()


def known(format: str) -> None:
    """Raises ``ExportRefused`` for a format that there is not."""
    if format not in FORMATS:
        raise ExportRefused(f"{format!r} is no format; there are {', '.join(FORMATS)}.")


def writer_of(format: str) -> type[Writer]:
    """The writer of a format; its library is loaded only now. Raises ``ExportRefused``."""
    known(format)
    match format:
        case "csv":
            from billing.exports.csv import CsvWriter

            return CsvWriter
        case "jsonl":
            from billing.exports.jsonl import JsonLinesWriter

            return JsonLinesWriter
        case "xlsx":
            from billing.exports.xlsx import XlsxWriter

            return XlsxWriter
        case "parquet":
            from billing.exports.parquet import ParquetWriter

            return ParquetWriter
        case _:
            from billing.exports.focus import FocusWriter

            return FocusWriter
