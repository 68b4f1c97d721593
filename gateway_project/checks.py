"""System checks for settings that can't work. ``manage.py check --database default`` runs them all,
and ``serve`` does so before it starts a gateway.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import psycopg
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from gateway_project.logs import FORMATTERS

SECRET_KEY_LENGTH = 50


@register(Tags.security)
def secret_key(**kwargs: Any) -> list[CheckMessage]:
    if settings.DEBUG or len(settings.SECRET_KEY) >= SECRET_KEY_LENGTH:
        return []
    return [
        Error(
            f"SECRET_KEY has {len(settings.SECRET_KEY)} characters; at least {SECRET_KEY_LENGTH} are needed.",
            hint="Leave SECRET_KEY unset to have one generated into DATA_DIR, or set it to the output of "
            "`python -c 'import secrets; print(secrets.token_urlsafe(50))'`.",
            id="gateway.E001",
        )
    ]


@register
def data_dir(**kwargs: Any) -> list[CheckMessage]:
    path = settings.DATA_DIR
    existing = next(place for place in (path, *path.parents) if place.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return []
    return [
        Error(
            f"DATA_DIR {path} cannot be written to.",
            hint="Give the account that runs the gateway a writable directory, or set DATA_DIR to one.",
            id="gateway.E002",
        )
    ]


@register(Tags.database)
def direct_connection(
    *, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """A transaction pooler hands each statement to any server session: advisory locks get lost.

    A gateway process proves that it is alive by such a lock, so DATABASE_DIRECT_URL must lead to
    PostgreSQL itself.
    """
    if not databases or "default" not in databases or not settings.DATABASE_DIRECT_URL:
        return []
    try:
        pooled = behind_pooler(settings.DATABASE_DIRECT_URL)
    except psycopg.OperationalError as error:
        return [
            Error(
                f"DATABASE_DIRECT_URL cannot be connected to: {str(error).strip()}",
                hint="It is the connection to PostgreSQL itself, past any pooler; by default DATABASE_URL.",
                id="gateway.E004",
            )
        ]
    if not pooled:
        return []
    return [
        Error(
            "DATABASE_DIRECT_URL leads to a connection pooler in transaction mode.",
            hint="Point DATABASE_DIRECT_URL at PostgreSQL itself. DATABASE_URL may keep using the pooler.",
            id="gateway.E003",
        )
    ]


@register
def redis_url(**kwargs: Any) -> list[CheckMessage]:
    if settings.REDIS_URL:
        return []
    return [
        Warning(
            "There is no REDIS_URL: gateway processes cannot wake each other, Celery cannot run.",
            hint="Start the stack first (`make run`, or `manage.py serve`) with the same DATA_DIR, or set "
            "REDIS_URL=redis://:password@host:port/0.",
            id="gateway.W001",
        )
    ]


@register
def log_format(**kwargs: Any) -> list[CheckMessage]:
    if settings.LOG_FORMAT in FORMATTERS:
        return []
    return [
        Error(
            f"LOG_FORMAT is {settings.LOG_FORMAT!r}.",
            hint=f"Set it to {' or '.join(FORMATTERS)}.",
            id="gateway.E007",
        )
    ]


@register(Tags.security)
def second_factor(**kwargs: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if settings.STAFF_SECOND_FACTOR not in ("off", "optional", "required"):
        found.append(
            Error(
                f"STAFF_SECOND_FACTOR is {settings.STAFF_SECOND_FACTOR!r}.",
                hint="Set it to off, optional or required.",
                id="gateway.E005",
            )
        )
    wanted = [
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "gateway_project.second_factor.gate.SecondFactorGate",
    ]
    if settings.STAFF_SECOND_FACTOR != "off" and wanted != [
        one for one in settings.MIDDLEWARE if one in wanted
    ]:
        found.append(
            Error(
                "Nobody would be asked for the second factor: its middleware is missing.",
                hint=f"MIDDLEWARE has to have, in this order: {', '.join(wanted)}.",
                id="gateway.E006",
            )
        )
    return found


@register
def tracing(**kwargs: Any) -> list[CheckMessage]:
    if not settings.TRACES_ENDPOINT or find_spec("opentelemetry") is not None:
        return []
    return [
        Error(
            "Traces are to be exported, but OpenTelemetry is not installed.",
            hint="pip install -r requirements-tracing.txt, or unset OTEL_EXPORTER_OTLP_ENDPOINT.",
            id="gateway.E008",
        )
    ]


def behind_pooler(url: str) -> bool:
    """Whether ``url`` reaches PostgreSQL through a pooler that changes sessions between statements.

    Two connections take turns and ask which server session answers. Straight to PostgreSQL, or
    through a pooler in session mode, each has one session for good and the two never share one.
    Raises ``psycopg.OperationalError`` when nothing answers.
    """
    with (
        psycopg.connect(url, autocommit=True, connect_timeout=5, prepare_threshold=None) as one,
        psycopg.connect(url, autocommit=True, connect_timeout=5, prepare_threshold=None) as other,
    ):
        return not keep_their_sessions([(_session(one), _session(other)) for _ in range(5)])


def keep_their_sessions(turns: list[tuple[int, int]]) -> bool:
    """Whether two connections, asked in turn for their session's pid, each had one of its own."""
    ones, others = ({pids[i] for pids in turns} for i in (0, 1))
    return len(ones) == len(others) == 1 and ones != others


def _session(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    if row is None:
        raise psycopg.OperationalError("pg_backend_pid() answered nothing")
    return row[0]
