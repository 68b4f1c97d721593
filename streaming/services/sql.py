"""Statements that the ORM has no words for, on Django's connection."""

from __future__ import annotations

from typing import Any

from django.db import connection


def rows(statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
    """What the statement returns. A single mapping gives the arguments their names."""
    by_name = len(arguments) == 1 and isinstance(arguments[0], dict)
    with connection.cursor() as cursor:
        cursor.execute(statement, arguments[0] if by_name else arguments)
        return cursor.fetchall()


def changed(statement: str, *arguments: Any) -> int:
    """How many rows the statement has changed. A single mapping gives the arguments their names."""
    by_name = len(arguments) == 1 and isinstance(arguments[0], dict)
    with connection.cursor() as cursor:
        cursor.execute(statement, arguments[0] if by_name else arguments)
        return cursor.rowcount
