"""Parquet: typed columns, decimals as decimals, in row groups of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from billing.core.money import AMOUNT_PLACES
from billing.errors import ExportFailed
from billing.exports.columns import COLUMNS, SCHEMA_VERSION, Column, Kind, Row
from billing.exports.formats import Part, Writer

GROUP_ROWS = 20_000

# The widest that pandas, polars, DuckDB and Spark all read: 20 digits before the point, where the
# ledger's column has 22. Nobody owes 10^20 of anything for one answer.
DECIMAL = pa.decimal128(38, AMOUNT_PLACES)
_TYPES = {
    Kind.CODE: pa.string(),
    Kind.TEXT: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.DECIMAL: DECIMAL,
    Kind.TIME: pa.timestamp("us", tz="UTC"),
}
_ALWAYS = {
    "schema_version", "line_id", "kind", "period", "period_start", "period_end", "issuer", "account_id",
    "account", "account_name", "currency", "amount", "occurred_at", "recorded_at",
}  # fmt: skip


def _field(column: Column) -> pa.Field:
    return pa.field(column.name, _TYPES[column.kind], nullable=column.name not in _ALWAYS)


SCHEMA = pa.schema(
    [_field(column) for column in COLUMNS], metadata={"schema_version": str(SCHEMA_VERSION)}
)


class ParquetWriter(Writer):
    """One file. Rows are kept as Arrow batches, a few hundred bytes each, until a group is full."""

    def __init__(self, directory: Path, stem: str) -> None:
        super().__init__(directory, stem)
        self._path = directory / f"{stem}.parquet"
        self._file = pq.ParquetWriter(self._path, SCHEMA, compression="zstd", version="2.6")
        self._batches: list[pa.RecordBatch] = []
        self._waiting = 0
        self._rows = 0

    def write(self, rows: Sequence[Row]) -> None:
        columns = zip(*rows, strict=True)
        try:
            arrays = [
                pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)
            ]
        except pa.ArrowInvalid as error:
            raise ExportFailed(f"Parquet cannot hold it: {error}") from error
        self._batches.append(pa.record_batch(arrays, schema=SCHEMA))
        self._rows += len(rows)
        self._waiting += len(rows)
        if self._waiting >= GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        group = pa.Table.from_batches(self._batches, SCHEMA)
        self._batches, self._waiting = [], 0
        self._file.write_table(group, row_group_size=group.num_rows)

    def finish(self) -> None:
        if self._waiting:
            self._write_group()
        self._file.close()
        self.parts.append(Part(self._path, self._rows))

    def abandon(self) -> None:
        self._batches = []
        self._file.close()
