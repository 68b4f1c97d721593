"""What other parts of the gateway call when something has happened. Plain numbers, no I/O."""

from __future__ import annotations

from typing import Literal

from streaming.metrics import catalogue as c
from streaming.metrics.plain import Samples

# The way of an answer


def first_token(model: str, seconds: float, level: str, variant: str) -> None:
    """A session has its first token, ``seconds`` after it began. ``variant``: as a label."""
    c.FIRST_TOKEN.note(seconds, model)
    c.QUALITY_FIRST_TOKEN.note(seconds, level, variant)


def reader_gap(seconds: float, level: str, variant: str) -> None:
    """An answer that was interrupted goes on, ``seconds`` after its reader's last token."""
    c.QUALITY_GAP.note(seconds, level, variant)


def reader_lag(level: str, seconds: float) -> None:
    """What was sent to a reader has not been taken for so long; told once a second."""
    c.READER_LAG.note(seconds, level)


def connection_health(level: str, score: int) -> None:
    """A connection is over whose lowest score was ``score``."""
    c.CONNECTION_HEALTH.note(score, level)


def pace(node: str, model: str) -> Samples:
    """Where an attempt notes the seconds between two reads: ``pace(…).note(gap)``.

    Ask once an attempt; ``note`` is then cheap enough for every read.
    """
    return c.INTER_TOKEN.of(node, model)


def attempt_ended(
    node: str,
    reason: str,
    *,
    discarded: int = 0,
    repeated: int = 0,
    detection_seconds: float | None = None,
) -> None:
    """An attempt is over. ``reason``: ``finished``, ``cancelled``, ``overtaken``, ``rejected`` or
    the value of its ``Cause``.

    ``discarded``: tokens that were without text yet or held back; ``repeated``: tokens of a
    regenerated answer that the reader had already; ``detection_seconds``: of a failure, from the
    last data to its being noticed.
    """
    c.ATTEMPTS.add(1, node, reason)
    if discarded:
        wasted("hedge" if reason == "overtaken" else "discarded", discarded)
    if repeated:
        wasted("repeated", repeated)
    if detection_seconds is not None:
        c.DETECTION.note(detection_seconds, reason)


def failover(cause: str, grade: str, node: str) -> None:
    """An attempt on ``node`` was interrupted, and why is known by now (``core.attribution``).

    ``grade``: of the seam to the attempt that went on; ``none``: nothing has.
    """
    c.FAILOVERS.add(1, cause, grade, node)


def seam(
    kind: str,
    grade: str,
    *,
    gap_seconds: float | None = None,
    recovery_seconds: float | None = None,
) -> None:
    """An answer goes on in another attempt: its first token is there.

    ``kind``: why there is one more attempt (``models.Attempt.Kind``). ``gap_seconds``: since the
    last data before; ``recovery_seconds``: since the failure was noticed. None: not known.
    """
    if gap_seconds is not None:
        c.SEAM_GAP.note(gap_seconds, kind, grade)
    if recovery_seconds is not None:
        c.RECOVERY.note(recovery_seconds, kind)


def hedge(outcome: Literal["won", "lost", "failed"]) -> None:
    """A hedge is decided.

    It has ``won`` if it spoke first, or the silent attempt failed meanwhile; it has ``lost`` if the
    silent attempt spoke, and ``failed`` if it came to nothing by itself.
    """
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
    node: str,
    seconds: float | None,
    outcome: str,
    attempts: int = 1,
) -> None:
    """What became of the engine's side of attempts: ``verified``, ``unverifiable`` or ``overdue``.

    ``seconds`` since the end, once verified.

    An attempt may be ``unverifiable`` or ``overdue`` first and ``verified`` later: each is counted.
    """
    c.RECLAIMS.add(attempts, node, outcome)
    if seconds is not None and outcome == "verified":
        c.RECLAIM.note(seconds, node)


# Content


def content_rule_hit(action: str) -> None:
    """A content rule, or a moderator, has found something. ``action``: stop, mask or flag."""
    c.CONTENT_RULE_HITS.add(1, action)


def moderator_failed() -> None:
    """A moderator gave no verdict in time."""
    c.MODERATOR_FAILURES.add(1)
