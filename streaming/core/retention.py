"""How long content is kept, and the day on which it is expected to leave.

Days are UTC. A session's content is kept for a number of whole days from the day on which it began,
so everything that began on one day leaves together, at the beginning of another.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

FOR_EVER = 0
"""As a number of days."""
KEPT = date(9999, 12, 31)
"""The day of content that has none: it is kept for ever, or for so long that days of it are not told
apart."""
LONGEST = 400
"""Days for which the token log is kept day by day; each day is a partition."""


def expiry_day(started: datetime, days: int) -> date:
    """The first day on which content that is kept for ``days`` is not there any more."""
    if days == FOR_EVER or days > LONGEST:
        return KEPT
    return started.astimezone(UTC).date() + timedelta(days=days + 1)


def began_before(today: date, days: int) -> datetime:
    """What began before this moment has been kept for ``days``, as of ``today``."""
    return datetime.combine(today - timedelta(days=days), time(), UTC)


def longer_than_content(content_days: int, metadata_days: int) -> bool:
    """Whether metadata is kept for at least as long as content. (Content that is kept for ever keeps
    its metadata, whatever was said of that.)"""
    return FOR_EVER in (content_days, metadata_days) or metadata_days >= content_days
