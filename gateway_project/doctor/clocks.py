"""The clock of whoever sends a ``Date``."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime


def offset_of(date: str | None, now: float | None = None) -> float | None:
    """Seconds by which theirs is ahead of ours; None without a date that can be read.

    The header has whole seconds: half of one is added, so that a right clock is at most half off.
    """
    if not date:
        return None
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    return theirs + 0.5 - (time.time() if now is None else now)
