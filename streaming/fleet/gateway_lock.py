"""How a gateway process is known to be dead: each keeps an advisory lock on its id while it lives.

The journal's connection holds it. A free lock or an old heartbeat means that the process is dead; a
frozen one keeps its lock.
"""

from __future__ import annotations

ADVISORY_CLASS = 0x554E42
"""The first key of the locks, "UNB": keeps ours apart from other users of the database."""

OWN_IS_HELD = f"SELECT NOT pg_try_advisory_xact_lock_shared({ADVISORY_CLASS}, %s::int)"
"""Whether the process with this id still holds its lock."""

LOCKS_BACK_SECONDS = 1.0
"""Within this time of its return every living process has its lock again. A database that goes away
takes all locks with it: until then a free one says nothing."""

# Probing takes the lock shared and for the transaction only, so it is released at once and never
# keeps its owner from getting it back.
OWNER_IS_DEAD = f"""(
    i.id IS NULL OR i.stopped_at IS NOT NULL
    OR i.heartbeat_at < now() - interval '5 seconds'
    OR pg_try_advisory_xact_lock_shared({ADVISORY_CLASS}, i.id::int)
)"""
"""A condition on a row ``i`` of the instance table."""
