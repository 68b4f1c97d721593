"""What other parts of the gateway call when something has happened. Plain numbers, no I/O."""

from __future__ import annotations

from typing import Literal

from streaming.metrics import catalogue as c
from streaming.metrics.plain import Samples

# The way of an answer


def first_token(model: str, seconds: float) -> None:
    """A session has its first token, ``seconds`` after it began."""
    c.FIRST_TOKEN.note(seconds, model)


def pace(node: str, model: str) -> Samples:
    """Where an attempt notes the seconds between two reads: ``pace(…).note(gap)``.

    Ask once an attempt; ``note`` is then cheap enough for every read.
    """
    return c.INTER_TOKEN.of(node, model)


def attempt_ended(node: str, reason: str, *, discarded: int = 0, repeated: int = 0) -> None:
    """An attempt is over. ``reason``: ``finished``, ``cancelled``, ``rejected`` or its ``Cause``.

    ``discarded``: tokens that were without text yet or held back; ``repeated``: tokens of a
    regenerated answer that the reader had already.
    """
    c.ATTEMPTS.add(1, node, reason)
    if discarded:
        wasted("discarded", discarded)
    if repeated:
        wasted("repeated", repeated)


def seam(
    cause: str,
    grade: str,
    *,
    gap_seconds: float,
    detection_seconds: float | None = None,
    recovery_seconds: float | None = None,
) -> None:
    """An answer goes on after a failure: its first token is there.

    ``gap_seconds``: since the last token before; ``detection_seconds``: from the last data to the
    failure being noticed; ``recovery_seconds``: from there to now. None where it is not known, as
    after the death of a gateway process.
    """
    c.FAILOVERS.add(1, cause, grade)
    c.SEAM_GAP.note(gap_seconds, grade)
    if detection_seconds is not None:
        c.DETECTION.note(detection_seconds, cause)
    if recovery_seconds is not None:
        c.RECOVERY.note(recovery_seconds, cause)


def seam_refused(cause: str) -> None:
    """An answer could not be continued after a failure, and has ended with an error."""
    c.FAILOVERS.add(1, cause, "refused")


def hedge(outcome: Literal["won", "lost", "both"]) -> None:
    """A hedge is decided: ``won`` by the continuation, ``lost`` to the silent node, or both failed."""
    c.HEDGES.add(1, outcome)


def wasted(cause: Literal["discarded", "repeated", "hedge"], tokens: int) -> None:
    """Tokens that an engine generated and that are in no log."""
    c.GENERATED.add(tokens)
    c.WASTED.add(tokens, cause)


# Sessions and connections


def session_ended(state: str) -> None:
    """A session has ended, or is suspended: the value of its ``SessionState``.

    Gateways count theirs as the runner ends; this is for what ends without one.
    """
    c.SESSION_ENDS.add(1, state)


def session_left(position: int) -> None:
    """A reader that had ``position`` tokens has not come back in its grace period."""
    c.ABANDONED_AT.note(position)


def settled_after_disconnect(seconds: float) -> None:
    """A session that its reader left is suspended or cancelled, and that is durable."""
    c.SETTLEMENT.note(seconds)


def connection_ended(
    protocol: str, end: Literal["whole", "moved", "early"], seconds: float
) -> None:
    """A connection on which an answer was followed is over."""
    c.CONNECTIONS_ENDED.add(1, protocol, end)
    c.CONNECTION_SECONDS.note(seconds, protocol)


# Engines


def reclaimed(
    node: str, seconds: float | None, outcome: Literal["verified", "unverifiable", "overdue"]
) -> None:
    """What became of the engine's side of an attempt. ``seconds`` since its end, once verified.

    An attempt may be ``unverifiable`` or ``overdue`` first and ``verified`` later: each is counted.
    """
    c.RECLAIMS.add(1, node, outcome)
    if seconds is not None and outcome == "verified":
        c.RECLAIM.note(seconds, node)


def fragmentation(node: str, ratio: float) -> None:
    """The fragmentation index of a node as last computed, 0 to 1."""
    c.FRAGMENTATION.set(ratio, node)
