"""Limits of rate and of number, as they are set for a tenant, a key or an end user."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from uuid import UUID

from streaming.core.levels import Level


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


@dataclass(frozen=True, slots=True)
class Scope:
    """What a limit is set for. ``kind``: tenant, key, token (for embedding) or user.

    ``name`` is unique among all scopes and tells nobody who an end user is.
    """

    kind: str
    name: str
    limit: Limit


class Turn(enum.Enum):
    """How a session stands that asked for a slot."""

    GRANTED = 1
    WAITING = 0
    GONE = -1
    """It is not known: it was put out of a full queue, or its process was silent for too long."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A session that wants to begin: a slot of each of ``slots`` (name, how many there are).

    ``tokens`` (name, per minute) are what its delivered tokens will be taken from; kept with the
    slots, so that whoever takes the session over knows. ``user`` takes turns with others.
    """

    session_id: UUID
    user: str
    level: Level
    slots: tuple[tuple[str, int], ...]
    tokens: tuple[tuple[str, int], ...]
    is_new: bool = True
    """Whether it is not in the queue yet, as far as its process knows."""


@dataclass(frozen=True, slots=True)
class Debit:
    """A session has ``mark`` delivered tokens; ``base``: so many were debited before, if nobody knows
    better. ``tokens`` as in ``Ask``; empty: known from its beginning, or not at all."""

    session_id: UUID
    base: int
    mark: int
    tokens: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Rate:
    """One bucket: ``amount`` is to be taken of ``per_minute``, 0 to have it looked at only."""

    name: str
    per_minute: int
    amount: int
