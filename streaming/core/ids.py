"""Identifiers: time-ordered UUIDs and codes that people can read out."""

from __future__ import annotations

import secrets
import time
import uuid

# Crockford's alphabet: no I, L, O, U, so that a code survives being read over the phone.
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def uuid7() -> uuid.UUID:
    """A version 7 UUID (RFC 9562): sorted by creation time, 74 random bits."""
    millis = time.time_ns() // 1_000_000
    value = (millis & ((1 << 48) - 1)) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)


def created_at(session_id: uuid.UUID) -> int:
    """The Unix time in seconds at which a version 7 UUID was made."""
    return (session_id.int >> 80) // 1000


def reference_code() -> str:
    """A short code such as ``K7Q-4MX`` (30 random bits), for people; not an identifier.

    Two sessions may share one (1 in 10⁹ per pair); a search by code shows both with their times.
    """
    letters = "".join(secrets.choice(_ALPHABET) for _ in range(6))
    return f"{letters[:3]}-{letters[3:]}"


def new_seed() -> int:
    """A sampling seed for a request that named none: positive, and small enough for every engine."""
    return secrets.randbits(31)
