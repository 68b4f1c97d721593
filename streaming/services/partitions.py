"""The partitions of the token log: one for each day on which content leaves.

They are made days ahead, and go when nothing in them is to be kept. Whoever makes or drops one waits
for locks, and the journal would queue behind who waits; so nobody waits for longer than ``PATIENCE_MS``,
and what could not be done is done another time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.db import OperationalError, transaction
from psycopg.errors import DeadlockDetected, LockNotAvailable

from streaming.conf import conf
from streaming.core.retention import KEPT, expiry_day
from streaming.models import Tenant
from streaming.services.sql import changed, rows

logger = logging.getLogger(__name__)

AHEAD = 3
"""Days for which sessions that begin then have their partition already."""
PATIENCE_MS = 30
"""So long the journal may have to wait behind us: about as long as from one token to the next."""
TRIES = 5
PAUSE = 0.2

TABLE = "streaming_tokencheckpoint"
OTHERS = "checkpoints_other"
"""The default partition: content that has no day's."""
_PREFIX = "checkpoints_"
LOCK_CLASS = 0x554E44
"""Of advisory locks: one run at a time makes or drops."""

KEEP_LOG = f"LOCK TABLE {TABLE} IN ACCESS SHARE MODE"
"""For who reads all of one moment, before anything else: what goes with a partition goes for readers of
an earlier moment, too."""

_WAITED_FOR = """
SELECT 1 FROM streaming_streamsession WHERE expires_on = %s AND purged_at IS NULL LIMIT 1
"""
# By their place in the partition, which is one: the day is given as a value.
_DELETE_PURGED = f"""
DELETE FROM {TABLE} WHERE expires_on = %(day)s AND ctid = ANY(ARRAY(
    SELECT c.ctid FROM {TABLE} c JOIN streaming_streamsession s ON s.id = c.session_id
    WHERE c.expires_on = %(day)s AND s.purged_at IS NOT NULL LIMIT %(most)s
))
"""
DELETED_AT_ONCE = 50_000

_THERE = "SELECT 1 FROM pg_class WHERE oid = to_regclass(%s)"


@dataclass(frozen=True, slots=True)
class Partition:
    """What leaves on one day."""

    day: date

    @property
    def table(self) -> str:
        return f"{_PREFIX}{self.day:%Y%m%d}"


def partitions() -> list[Partition]:
    """Those of days, the next to leave first."""
    found = rows(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = to_regclass(%s)",
        TABLE,
    )
    days = [name.removeprefix(_PREFIX) for (name,) in found]
    return [
        Partition(datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC).date())
        for day in sorted(days)
        if day.isdecimal()
    ]


def today() -> date:
    """The day it is, for all that leaves."""
    return datetime.now(UTC).date()


def make_partitions(also: Collection[date] = ()) -> int:
    """Make those that sessions of today and of the next days need, and those of ``also``; how many."""
    if not rows(_THERE, OTHERS):
        return 0  # migrated backwards
    return sum(_patiently("streaming_make_partition", partition) for partition in missing(also))


def missing(also: Collection[date] = ()) -> list[Partition]:
    """Those of today, the next days and ``also`` that are not there."""
    there = {partition.day for partition in partitions()}
    return [Partition(day) for day in sorted((_needed() | {*also} - {KEPT}) - there)]


def due() -> list[Partition]:
    """Those whose day has come."""
    return [partition for partition in partitions() if partition.day <= today()]


def drop_partitions() -> dict[str, int]:
    """Drop those whose day has come and which hold nothing that is kept.

    Where a session of that day has not been purged yet (it lives, or its tenant's content is kept
    for longer by now), the partition waits for it; of the others the rows are deleted.
    """
    dropped = deleted = 0
    for partition in due():
        # The rows go first: only who reads those very rows could be in the way.
        if rows(_WAITED_FOR, partition.day):
            deleted += _delete_purged(partition)
        elif _patiently("streaming_empty_partition", partition):
            dropped += _patiently("streaming_drop_partition", partition)
    return {"dropped": dropped, "deleted": deleted}


def held() -> list[Partition]:
    """Those that should have gone the day before, and wait for no session: somebody reads them."""
    return [
        partition
        for partition in due()
        if partition.day < today() and not rows(_WAITED_FOR, partition.day)
    ]


def _delete_purged(partition: Partition) -> int:
    return changed(_DELETE_PURGED, {"day": partition.day, "most": DELETED_AT_ONCE})


def _needed() -> set[date]:
    told = Tenant.objects.filter(content_days__isnull=False)
    periods = {conf().content_days, *told.values_list("content_days", flat=True).distinct()}
    now = datetime.now(UTC)
    days = {
        expiry_day(now + timedelta(days=ahead), period)
        for period in periods
        if period is not None
        for ahead in range(AHEAD + 1)
    }
    return days - {KEPT}


def _patiently(function: str, partition: Partition) -> bool:
    """Call it as soon as its locks can be had; False when they can't, or when others are at it."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE)
        try:
            with transaction.atomic():
                if not rows("SELECT pg_try_advisory_xact_lock(%s, 0)", LOCK_CLASS)[0][0]:
                    return False
                rows("SELECT set_config('lock_timeout', %s, true)", f"{PATIENCE_MS}ms")
                ((done,),) = rows(f"SELECT {function}(%s)", partition.day)
                return bool(done)
        except OperationalError as exc:
            if not isinstance(exc.__cause__, (LockNotAvailable, DeadlockDetected)):
                raise
    logger.info("%s is in use and stays as it is for now", partition.table)
    return False
