"""Leases from Django's side: who of several tasks does something, also when one is killed."""

from __future__ import annotations

from datetime import timedelta

from streaming.models import Lease
from streaming.services.sql import changed

_TAKE = """
INSERT INTO streaming_lease AS held (name, holder, until) VALUES (%s, %s, now() + %s)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE held.until < now() OR held.holder = excluded.holder
"""


def take_lease(name: str, holder: str, seconds: float) -> bool:
    """Take (or prolong) it; False while somebody else has it."""
    return changed(_TAKE, name, holder, timedelta(seconds=seconds)) > 0


def release_lease(name: str, holder: str) -> None:
    """Give it back; nothing happens when somebody else has it by now."""
    Lease.objects.filter(name=name, holder=holder).delete()
