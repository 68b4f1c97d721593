"""Comparing clocks: what is asked for takes time, and is no difference between them."""

from __future__ import annotations

import time
from datetime import datetime
from email.utils import parsedate_to_datetime

DATE_STEP = 1.0
"""A ``Date`` header has whole seconds, rounded down."""


def difference(theirs: float, before: float, after: float, step: float = 0.0) -> float:
    """Seconds by which their clock is certainly ahead of ours (negative: behind).

    ``theirs``: what it said (up to ``step`` less than it showed), at some moment between ``before``
    and ``after`` of ours. 0: nothing speaks against their being the same.
    """
    if theirs > after:
        return theirs - after
    return min(0.0, theirs + step - before)


def offset_of_date(date: str | None, before: float, after: float | None = None) -> float | None:
    """The difference of whoever sent this header; None without a date that can be read."""
    if not date:
        return None
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    return difference(theirs, before, time.time() if after is None else after, DATE_STEP)


def offset_of_server_time(text: str, before: float) -> float | None:
    """The same of ``X-Server-Time``, in ISO 8601."""
    try:
        theirs = datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
    return difference(theirs, before, time.time(), 0.001)
