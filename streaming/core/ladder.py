"""The timeout ladder: who gives up first when nothing comes any more.

Every party waits longer than the one in front of it, so that a silence is noticed by the party that
can do something about it, and its successor never pulls the connection away from under it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

HEARTBEATS_PER_SILENCE = 1.5
"""Silence, in heartbeats, that a client has to bear: one may be late, two missing are a sign."""

SOFT_SILENCE = 2 / 3
SOFT_ANSWER = 0.9
"""The share of a hard limit after which its warning comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """All limits in seconds, named as the settings. 0 for a proxy: not known, or no limit."""

    keepalive_seconds: float
    keepalive_weak_seconds: float
    recovering_ping_seconds: float
    client_silence: float
    gateway_silence: float
    engine_silence: float
    first_token_timeout: float
    max_answer_seconds: float
    proxy_idle_seconds: float
    proxy_total_seconds: float


@dataclass(frozen=True, slots=True)
class Problem:
    """One rung that is wrong: ``kind`` is limit, ladder, idle or total."""

    kind: str
    message: str
    hint: str


def problems(ladder: Ladder) -> list[Problem]:
    """What is wrong with it; empty when it holds."""
    return [*_not_positive(ladder), *_not_rising(ladder), *_proxies(ladder)]


def told_silence(client_silence: float, heartbeat: float) -> float:
    """The silence a client is told to bear that gets a sign of life every ``heartbeat`` seconds.

    A client may ask for slower heartbeats than its rung would bear; it must not give up between two.
    """
    return max(client_silence, HEARTBEATS_PER_SILENCE * heartbeat)


_LIMITS = (
    "keepalive_seconds",
    "keepalive_weak_seconds",
    "recovering_ping_seconds",
    "client_silence",
    "gateway_silence",
    "engine_silence",
    "first_token_timeout",
    "max_answer_seconds",
)
_RUNGS = (
    ("keepalive_seconds", "client_silence", "A client gives up before it hears the next keep-alive."),
    ("keepalive_weak_seconds", "client_silence", "A client on a weak network gives up before it hears the next keep-alive."),
    ("recovering_ping_seconds", "client_silence", "A client gives up while its answer is being recovered."),
    ("client_silence", "gateway_silence", "The gateway fails an engine over while clients do not even suspect their own connection."),
    ("gateway_silence", "engine_silence", "The connection to an engine is cut before the gateway has judged its silence."),
    ("gateway_silence", "max_answer_seconds", "An answer ends before a silence in it can be noticed."),
    ("first_token_timeout", "max_answer_seconds", "An answer ends before its first token is given up."),
)  # fmt: skip


def _not_positive(ladder: Ladder) -> Iterator[Problem]:
    for name in _LIMITS:
        if getattr(ladder, name) <= 0:
            yield Problem(
                "limit",
                f"{name.upper()} must be greater than 0.",
                "Unset it to use the default (docs/settings.md).",
            )
    for name in ("proxy_idle_seconds", "proxy_total_seconds"):
        if getattr(ladder, name) < 0:
            yield Problem("limit", f"{name.upper()} must not be negative.", "0: not known.")


def _not_rising(ladder: Ladder) -> Iterator[Problem]:
    for lower, upper, consequence in _RUNGS:
        low, high = getattr(ladder, lower), getattr(ladder, upper)
        if not low < high:
            yield Problem(
                "ladder",
                f"{lower.upper()} ({low:g} s) must be less than {upper.upper()} ({high:g} s). {consequence}",
                "The defaults are 8 < 15 < 22 < 30 s: keep-alive, client, gateway, engine"
                " (docs/timeouts.md). Change all of them in proportion.",
            )


def _proxies(ladder: Ladder) -> Iterator[Problem]:
    idle, total = ladder.proxy_idle_seconds, ladder.proxy_total_seconds
    if 0 < idle <= ladder.gateway_silence:
        yield Problem(
            "idle",
            f"PROXY_IDLE_SECONDS ({idle:g} s) must be more than GATEWAY_SILENCE ({ladder.gateway_silence:g} s):"
            " the proxy cuts connections that the gateway still works for.",
            "Raise the proxy's idle limit (nginx: proxy_read_timeout; a load balancer: idle timeout)"
            " to 60 s or more, and this setting with it (docs/timeouts.md).",
        )
    if 0 < total < ladder.max_answer_seconds:
        yield Problem(
            "total",
            f"PROXY_TOTAL_SECONDS ({total:g} s) must be at least MAX_ANSWER_SECONDS"
            f" ({ladder.max_answer_seconds:g} s): the proxy cuts the longest answers.",
            "Lift the proxy's limit on a whole response, or lower MAX_ANSWER_SECONDS to it"
            " (docs/timeouts.md).",
        )
