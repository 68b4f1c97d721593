"""Months in a time zone, as instants; and how they follow each other when the zone changes."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

NAME = re.compile(r"[12]\d{3}-(0[1-9]|1[0-2])")


@dataclass(frozen=True, slots=True)
class Month:
    """A month of somebody: its name (2026-11) and its instants in UTC; the end is exclusive."""

    name: str
    starts_at: datetime
    ends_at: datetime

    def __contains__(self, at: datetime) -> bool:
        return self.starts_at <= at < self.ends_at


def month_of(at: datetime, time_zone: str) -> str:
    """The name (2026-11) of the month that ``at`` is in, there: ``at`` is within its ``bounds``."""
    return month_at(at, time_zone, {}).name


def bounds(name: str, time_zone: str) -> tuple[datetime, datetime]:
    """When the month ``name`` begins and ends there, in UTC; the end is exclusive.

    Raises ``ValueError`` for a name that is no month.
    """
    following = shifted(name, 1)
    return _midnight(name, time_zone), _midnight(following, time_zone)


def month_at(at: datetime, time_zone: str, known: Mapping[str, Month]) -> Month:
    """The month that ``at`` belongs to, given those that stand already.

    ``known``: at least the months up to two before and after, as far as there are any; what stands
    is never moved. So a month that is new begins where the one before it ends and ends where the
    next one begins, even if the time zone was another one then: no instant is in two months, and
    none in no month.
    """
    name = at.astimezone(ZoneInfo(time_zone)).strftime("%Y-%m")
    while at not in (month := known.get(name) or _between(name, time_zone, known)):
        name = shifted(name, -1 if at < month.starts_at else 1)
    return month


def month_named(name: str, time_zone: str, known: Mapping[str, Month]) -> Month:
    """The month of that name; see ``month_at``. Raises ``ValueError`` for what is no month."""
    bounds(name, time_zone)
    return known.get(name) or _between(name, time_zone, known)


def shifted(name: str, by: int) -> str:
    """The name of the month ``by`` months later. Raises ``ValueError`` for a name that is no month."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no month; write it like 2026-11")
    count = int(name[:4]) * 12 + int(name[5:]) - 1 + by
    return f"{count // 12:04}-{count % 12 + 1:02}"


def _between(name: str, time_zone: str, known: Mapping[str, Month]) -> Month:
    starts_at, ends_at = bounds(name, time_zone)
    before, after = known.get(shifted(name, -1)), known.get(shifted(name, 1))
    return Month(
        name,
        before.ends_at if before else starts_at,
        after.starts_at if after else ends_at,
    )


def _midnight(name: str, time_zone: str) -> datetime:
    """The first instant whose local time is in the month."""
    zone = ZoneInfo(time_zone)
    local = datetime(int(name[:4]), int(name[5:]), 1)  # noqa: DTZ001  there
    first, other = sorted(local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    # Where clocks are set back over midnight it comes twice, and the first counts. Where they are
    # set forward over it, it does not come: the month begins with the change of clocks.
    if first == other or _local(first, zone) == local:
        return first
    seconds = range(int((other - first).total_seconds()) + 1)
    late = bisect_left(
        seconds, True, key=lambda late: _local(first + timedelta(seconds=late), zone) >= local
    )
    return first + timedelta(seconds=late)


def _local(at: datetime, zone: ZoneInfo) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None)
