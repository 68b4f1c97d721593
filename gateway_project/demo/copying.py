"""Rows on their way into PostgreSQL, by COPY: a session's tables are filled side by side."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from gateway_project.demo.answers import copied

COLUMNS: dict[str, tuple[str, ...]] = {
    "streaming_streamsession": (
        "id", "reference", "tenant_id", "api_key_id", "end_user", "request_id", "protocol", "model",
        "model_requested", "request", "seed", "prompt_token_ids", "prompt_tokens", "state",
        "finish_reason", "error_code", "cause", "evidence", "on_disconnect", "suspended_at",
        "resume_until", "owner_id", "cached_prompt_tokens", "completion_tokens", "discarded_tokens",
        "failovers", "created_at", "first_token_at", "ended_at",
    ),
    "session_fence": (
        "session_id", "epoch", "durable_seq", "sent_seq", "taken_seq", "cursor_seq", "acked_seq",
        "stop_requested",
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
        "session_id", "epoch", "attempt", "created_at", "first_seq", "last_seq", "token_ids",
        "text", "text_ends", "digest", "terminal", "ends_surely",
    ),
    "streaming_idempotencykey": (
        "tenant_id", "end_user", "key", "body_digest", "session_id", "created_at",
    ),
    "streaming_outboxmessage": ("session_id", "kind", "data", "created_at"),
}  # fmt: skip


def moment(at: float) -> str:
    """A Unix time as PostgreSQL reads it."""
    return datetime.fromtimestamp(at, UTC).isoformat()


def cell(value: Any) -> str:
    """One value in COPY's text format; floats are no times (see ``moment``)."""
    match value:
        case None:
            return r"\N"
        case bool():
            return "t" if value else "f"
        case str():
            if not value.isalnum():
                value = value.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n")
                value = value.replace("\r", r"\r")
            return value
        case bytes():
            return copied(value)
        case dict():
            return cell(json.dumps(value, ensure_ascii=False)) if value else "{}"
        case _:
            return str(value)


class Batch:
    """Rows of many sessions, written in one transaction. What has no course is not to be explained:
    ``plain`` holds the sessions that nothing has happened to."""

    def __init__(self) -> None:
        self.sessions = 0
        self.checkpoints = 0
        self.plain: list[UUID] = []
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
            # The triggers have noted all of them; to look at every one would take hours.
            cursor.execute(
                "DELETE FROM streaming_changedsession WHERE session_id = ANY(%s)", [self.plain]
            )
