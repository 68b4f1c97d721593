"""Limits of rate and of number, as they are set for a tenant, a key or an end user."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """None: no limit. Tokens are those that were delivered; replays and waste count for nothing."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    streams_at_once: int | None = None

    @property
    def is_none(self) -> bool:
        return self == NO_LIMIT


NO_LIMIT = Limit()
