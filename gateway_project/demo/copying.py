"""Rows on their way into PostgreSQL, by COPY: a session's tables are filled side by side."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from django.db import connection, transaction

COLUMNS: dict[str, tuple[str, ...]] = {
    "streaming_streamsession": (
        "id", "reference", "tenant_id", "api_key_id", "end_user", "request_id", "protocol", "model",
        "model_requested", "request", "seed", "prompt_token_ids", "prompt_tokens", "state",
        "finish_reason", "error_code", "cause", "evidence", "on_disconnect", "suspended_at",
        "resume_until", "owner_id", "cached_prompt_tokens", "completion_tokens", "discarded_tokens",
        "failovers", "created_at", "first_token_at", "ended_at", "expires_on",
    ),
    "session_fence": (
        "session_id", "epoch", "durable_seq", "sent_seq", "taken_seq", "cursor_seq", "acked_seq",
        "stop_requested", "expires_on",
    ),
    "streaming_attempt": (
        "session_id", "number", "kind", "epoch", "node_id", "node_name", "engine_request_id",
        "seam_grade", "seam_note", "started_at", "first_token_at", "ended_at", "first_seq",
        "last_seq", "end_reason", "end_detail", "cause", "evidence", "reclaim", "reclaimed_at",
        "ttft_ms", "detection_ms", "recovery_ms", "cached_prompt_tokens", "generated_tokens",
        "discarded_tokens", "repeated_tokens", "engine_prompt_tokens", "engine_completion_tokens",
    ),
    "streaming_sessionevent": ("session_id", "at", "kind", "seq", "data"),
    "streaming_tokencheckpoint": (
        "session_id", "expires_on", "epoch", "attempt", "created_at", "first_seq", "last_seq", "token_ids",
        "text", "text_ends", "digest", "terminal", "ends_surely",
    ),
    "streaming_idempotencykey": (
        "tenant_id", "end_user", "key", "body_digest", "session_id", "created_at",
    ),
    "streaming_nodeevent": ("node_id", "node_name", "at", "kind", "data"),
    "streaming_outboxmessage": ("session_id", "kind", "data", "created_at"),
    # Its triggers watch sessions as they go on; of what comes in one go they note only a part.
    "streaming_changedsession": ("session_id",),
}  # fmt: skip


class Copied(str):
    """What is in COPY's text format already."""

    __slots__ = ()


def copied(value: bytes) -> Copied:
    return Copied(rf"\\x{value.hex()}")


def moment(at: float) -> Copied:
    """A Unix time."""
    second = int(at)
    return Copied(f"{_second(second)}.{int((at - second) * 1e6):06d}+00")


@lru_cache(maxsize=4096)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def cell(value: Any) -> str:
    """One value in COPY's text format; a float is a number (see ``moment``)."""
    kind = type(value)
    if kind is Copied:
        return value
    if value is None:
        return r"\N"
    if kind is bool:
        return "t" if value else "f"
    if kind is dict:
        value, kind = (json.dumps(value, ensure_ascii=False) if value else "{}"), str
    if kind is bytes:
        return copied(value)
    if kind is str:
        if "\\" in value:
            value = value.replace("\\", r"\\")
        if not value.isprintable():
            value = value.replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")
        return value
    return str(value)


class Batch:
    """Rows of many sessions, written in one transaction."""

    def __init__(self) -> None:
        self.sessions = 0
        self.checkpoints = 0
        self._lines: dict[str, list[bytes]] = {table: [] for table in COLUMNS}

    def add(self, table: str, values: Iterable[Any]) -> None:
        self._lines[table].append("\t".join(map(cell, values)).encode())

    def add_copied(self, table: str, line: bytes) -> None:
        """A line that is in COPY's format already."""
        self._lines[table].append(line)

    def write(self) -> None:
        """Raises ``django.db.Error``; then nothing of it is there."""
        with transaction.atomic(), connection.cursor() as cursor:
            for table, lines in self._lines.items():
                if lines:
                    columns = ", ".join(COLUMNS[table])
                    with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                        copy.write(b"\n".join(lines) + b"\n")


def written(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same, each when it is stored. While PostgreSQL takes one, the next is made.

    Raises as ``Batch.write``; those before it are stored.
    """
    with ThreadPoolExecutor(1, "made-up sessions") as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            batch.write()
            yield batch
