"""What can go wrong with an engine, as gateways see and judge it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streaming.core.attribution import Evidence, Probe, attribute
from streaming.core.failures import Cause

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """``alone`` and ``storm``: how often it comes over one stream, and over a whole node at once.

    ``noticed``: seconds from the last data until the gateway knows, at least and at most. ``begun``:
    whether the engine had begun to answer. ``evidence``: what speaks besides what was seen.
    """

    seen: Cause
    said: str
    alone: float
    storm: float
    noticed: tuple[float, float]
    evidence: Callable[[random.Random], Facts] = lambda chance: {}
    begun: bool = True

    def judged(
        self, chance: random.Random, silence: float, siblings: int
    ) -> tuple[str, dict[str, Any]]:
        """Cause and evidence, as the attributor finds them for one of a storm's streams."""
        evidence = Evidence(
            seen=self.seen,
            said=self.said,
            silence=silence,
            siblings_failed=siblings,
            siblings_alive=0 if siblings else chance.randrange(1, 9),
            probe_after=chance.uniform(1.0, 1.6),
            **self.evidence(chance),
        )
        verdict = attribute(evidence)
        assert verdict is not None, self
        return verdict[0].value, verdict[1]


AT_ONCE = (0.001, 0.02)

FAULTS: tuple[Fault, ...] = (
    Fault(
        Cause.ENGINE_ERROR,
        "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB"
        " of which 1.94 GiB is free.",
        2.0, 2.0, AT_ONCE,
        lambda chance: {"probe": Probe.UP, "memory_used": chance.uniform(0.96, 0.99)},
    ),
    Fault(
        Cause.CLOSED, "the stream ended without a finish", 0.3, 2.0, AT_ONCE,
        lambda chance: {"probe": Probe.REFUSED, "oom_killed": True, "exit_code": 137, "pod_restarts": 1},
    ),
    Fault(
        Cause.RESET, "connection reset by peer", 0.2, 1.5, AT_ONCE,
        lambda chance: {"probe": Probe.REFUSED, "errno": "ECONNRESET", "xids": frozenset({48, 95}), "ecc_errors": chance.randint(1, 3)},
    ),
    Fault(
        Cause.RESET, "connection reset by peer", 0.8, 3.0, AT_ONCE,
        lambda chance: {"probe": Probe.REFUSED, "errno": "ECONNRESET"},
    ),
    Fault(
        Cause.ENGINE_ERROR, "EngineDeadError: EngineCore encountered an issue. See stack trace for the root cause.",
        0.8, 1.5, AT_ONCE, lambda chance: {"probe": Probe.ERROR},
    ),
    Fault(
        Cause.STALLED, "no data for 12.0 s", 1.0, 2.0, (4.0, 12.0),
        lambda chance: {"probe": Probe.NO_ANSWER, "unanswered": 0, "progressed": False},
    ),
    Fault(
        Cause.RESET, "connection reset by peer", 2.5, 0.0, AT_ONCE,
        lambda chance: {"probe": Probe.UP, "errno": "ECONNRESET"},
    ),
    Fault(
        Cause.STALLED, "no data for 12.0 s", 0.3, 2.0, (6.0, 12.0),
        lambda chance: {"probe": Probe.UNREACHABLE, "unanswered": 3, "nodes_failed": 1},
    ),
    Fault(
        Cause.BUSY, "HTTP 503: no free slots", 1.2, 0.3, (0.02, 0.2),
        lambda chance: {"probe": Probe.UP, "status": 503, "waiting": chance.randint(8, 60)},
        begun=False,
    ),
    Fault(
        Cause.BUSY, "HTTP 429: too many requests", 0.5, 0.0, (0.02, 0.1),
        lambda chance: {"probe": Probe.UP, "status": 429}, begun=False,
    ),
    Fault(
        Cause.NO_FIRST_TOKEN, "no first token for 20.0 s", 0.5, 0.0, (20.0, 20.1),
        lambda chance: {"probe": Probe.UP, "progressed": True}, begun=False,
    ),
    Fault(
        Cause.BAD_STATUS, "HTTP 401: invalid token", 0.3, 0.0, (0.01, 0.05),
        lambda chance: {"probe": Probe.UP, "status": 401}, begun=False,
    ),
    Fault(
        Cause.ENGINE_ERROR, "The response was stopped by the content policy", 0.4, 0.0, AT_ONCE,
        lambda chance: {"probe": Probe.UP},
    ),
)  # fmt: skip

NO_SEAM = Fault(
    Cause.MISMATCH, "the regenerated answer differs at character 212", 0.0, 0.0, (0.3, 0.9),
    lambda chance: {"probe": Probe.UP},
)  # fmt: skip
"""Of an engine that was asked again from the start, and answers otherwise."""


def fault(chance: random.Random, *, of_storms: bool) -> Fault:
    """One of them, each as often as it comes."""
    weights = [one.storm if of_storms else one.alone for one in FAULTS]
    return chance.choices(FAULTS, weights)[0]
