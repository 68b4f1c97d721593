"""Months in a time zone, as instants."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

NAME = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


def month_of(at: datetime, time_zone: str) -> str:
    """The name (2026-11) of the month that ``at`` is in, there."""
    return at.astimezone(ZoneInfo(time_zone)).strftime("%Y-%m")


def bounds(name: str, time_zone: str) -> tuple[datetime, datetime]:
    """When the month ``name`` begins and ends there, in UTC; the end is exclusive.

    Raises ``ValueError`` for a name that is no month.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no month; write it like 2026-11")
    year, month = int(name[:4]), int(name[5:])
    return _midnight(year, month, time_zone), _midnight(
        year + month // 12, month % 12 + 1, time_zone
    )


def _midnight(year: int, month: int, time_zone: str) -> datetime:
    # Where a change of clocks leaves midnight out, or has it twice, the first instant of the day.
    return datetime(year, month, 1, tzinfo=ZoneInfo(time_zone)).astimezone(UTC)
