"""Who does what the admin does, as ledger and audit log name them."""

from __future__ import annotations

from django.http import HttpRequest

LENGTH = 150  # of the columns that hold an actor


def actor_of(request: HttpRequest) -> str:
    """``user:<username>`` of who asks."""
    return named(request.user.get_username())


def named(username: str) -> str:
    """``user:<username>``."""
    return f"user:{username}"[:LENGTH]
