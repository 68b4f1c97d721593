"""Times as staff see them: in their own zone, which ``gateway_project.time_zone`` activates.

Downloads and exports don't come here: they are in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.utils import timezone
from django.utils.functional import lazy


def local(at: datetime | None, precise: bool = False) -> str:
    """In the viewer's zone, with its name: ``2026-11-03 16:05:12 CET``; a dash for no time.

    ``precise``: with milliseconds.
    """
    if at is None:
        return "-"
    at = timezone.localtime(at)
    digits = f".{at.microsecond // 1000:03}" if precise else ""
    return f"{at:%Y-%m-%d %H:%M:%S}{digits} {at:%Z}"


def utc(at: datetime | None) -> str:
    """In UTC whoever looks: ``2026-11-01 00:00:00 UTC``; for what is defined in it."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(at: datetime | None) -> str:
    """The time of day alone, ``16:05:12.345``: where the day and the zone are told beside it."""
    if at is None:
        return "-"
    at = timezone.localtime(at)
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03}"


def ago(seconds: float) -> str:
    """How long it is since: ``now``, ``4 s ago``, ``3 min ago``, ``2 h ago``, ``5 d ago``."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size * (2 if size > 1 else 1):
            return f"{seconds // size:.0f} {unit} ago"
    return "now"


def zone_name() -> str:
    """The viewer's zone by its name: ``Europe/Berlin``."""
    return timezone.get_current_timezone_name()


in_zone = lazy(lambda words: words.format(zone=zone_name()), str)
"""Words with the viewer's ``{zone}`` in them: for labels and help texts, which are made once."""
