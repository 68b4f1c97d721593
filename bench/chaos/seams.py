"""Which fault lay behind which failover and which silence: pure rules over times.

A *seam* is where an answer goes on on another engine, or in another gateway process. It has one
fault behind it, or none of ours; a silence that a reader saw has one origin.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.chaos.evidence import AttemptEvidence, SessionEvidence
from bench.chaos.records import FaultRecord, Gap, StreamRecord

NOTICED_SECONDS = 0.3
"""Silence beyond the pace that a reader notices."""
SLACK = 0.05
"""Seconds by which clocks and processes may be late towards each other."""
AFTER_FAULT = 3.0
"""Seconds after a target works again in which its failures are still the fault's."""
LONGEST_TAKEOVER = 30.0
CLOCK_TRUSTED = 0.05
"""Seconds that asking for the database's clock may take: only a greater difference is one."""

SeamKind = Literal["failover", "hedge", "migration", "takeover", "return"]
"""An engine failed; it had gone silent; it was drained; a gateway died; a reader came back."""
Origin = Literal["cut", "gateway", "postgres", "failover", "takeover", "slow", "redis", "other"]
"""What a silence comes from; ``slow``: an engine's fault that was waited out."""
CRASHES = ("node_kill", "node_reset")
NODE_FAULTS = ("node_kill", "node_stop", "node_freeze", "node_reset", "node_slow")


@dataclass(slots=True, kw_only=True)
class Seam:
    """One seam. Moments in seconds since the epoch, ``None`` where it was never joined on."""

    kind: SeamKind
    fault: str
    """Kind of the fault behind it; empty: none of ours."""
    began: float
    """The last data before it."""
    noticed: float
    """When the gateway knew, or when it started the hedge."""
    joined: float | None
    """The first token of the attempt that went on."""
    durable: float | None
    grade: str
    onto: str
    """The node that went on; empty: none."""
    detection: float | None
    """Seconds from the fault to ``noticed``; None where no fault is known."""
    before_first: bool
    """Nothing had been said yet: the first token came later, and no silence was in the answer."""

    @property
    def recovery(self) -> float | None:
        """Seconds from ``noticed`` to the next durable token."""
        end = self.durable if self.durable is not None else self.joined
        return None if end is None else max(0.0, end - self.noticed)

    @property
    def is_failover(self) -> bool:
        return self.kind in ("failover", "hedge")


class Faults:
    """The faults of a run, found by target and moment."""

    def __init__(self, faults: Iterable[FaultRecord]) -> None:
        self.all = sorted(faults, key=lambda fault: fault.at)
        self._by_target: dict[str, list[FaultRecord]] = defaultdict(list)
        self._by_kind: dict[str, list[FaultRecord]] = defaultdict(list)
        for fault in self.all:
            self._by_target[fault.target].append(fault)
            self._by_kind[fault.kind].append(fault)
        self._longest = {
            kind: max(fault.until - fault.at for fault in some)
            for kind, some in self._by_kind.items()
        }

    def of_node(self, node: str, moment: float) -> FaultRecord | None:
        """The latest of the node's that may have made it fail at that moment."""
        for fault in reversed(self._by_target.get(node, ())):
            begun = fault.at - SLACK <= moment
            if fault.kind in NODE_FAULTS and begun:
                return fault if moment <= fault.until + AFTER_FAULT else None
        return None

    def struck(self, node: str, begin: float, end: float) -> bool:
        """Whether the node had a fault in that time."""
        return any(
            fault.kind in NODE_FAULTS and fault.at <= end and fault.until >= begin
            for fault in self._by_target.get(node, ())
        )

    def died(self, node: str, begin: float, end: float) -> bool:
        """Whether the node's process was killed in that time: it holds nothing any more."""
        return any(
            fault.kind == "node_kill" and begin - SLACK <= fault.at <= end
            for fault in self._by_target.get(node, ())
        )

    def reachable(self, node: str, begin: float, end: float) -> float:
        """Seconds of that time in which the node could be asked and PostgreSQL could be told."""
        away = sorted(
            (max(fault.at, begin), min(fault.until, end))
            for fault in [*self._by_target.get(node, ()), *self._by_kind["postgres_restart"]]
            if fault.at < end and fault.until > begin and fault.kind != "node_slow"
        )
        seconds, done = end - begin, begin
        for start, stop in away:
            seconds -= max(0.0, stop - max(start, done))
            done = max(done, stop)
        return seconds

    def gateway(self, moment: float) -> FaultRecord | None:
        """The latest death of a gateway that a takeover at that moment may be owed to."""
        before = [f for f in self._by_kind.get("gateway_kill", ()) if f.at - SLACK <= moment]
        return before[-1] if before and moment - before[-1].at <= LONGEST_TAKEOVER else None

    def during(self, kind: str, begin: float, end: float, after: float = 0.0) -> FaultRecord | None:
        """One of the kind that lay in that time, or up to ``after`` seconds before it."""
        some = self._by_kind.get(kind, [])
        at = bisect_right(some, end, key=lambda fault: fault.at)
        while at > 0:
            fault = some[at - 1]
            if fault.until + after >= begin:
                return fault
            if fault.at + self._longest[kind] + after < begin:
                return None
            at -= 1
        return None

    def of_stream(self, index: int, begin: float, end: float) -> FaultRecord | None:
        """A cut of this stream's connection in that time."""
        for fault in self._by_target.get(str(index), ()):
            if fault.kind in ("reader_cut", "proxy_cut") and begin <= fault.at <= end:
                return fault
        return None


def seams(session: SessionEvidence, faults: Faults, clock_ahead: float = 0.0) -> list[Seam]:
    """Where this answer was joined on, in order.

    Attempts that failed one after the other without a token between them are one seam: the reader
    sees one silence. A hedge that lost, or an attempt of somebody who left, is none.
    """
    found: list[Seam] = []
    ahead = clock_ahead if abs(clock_ahead) > CLOCK_TRUSTED else 0.0
    before: AttemptEvidence | None = None
    broken: AttemptEvidence | None = None  # the first that failed since the last token
    for attempt in session.attempts:
        if attempt.number > 1 and before is not None and attempt.first_token is not None:
            found.append(_seam(broken or before, attempt, faults, ahead, attempt.first_seq > 1))
            broken = None
        if attempt.first_token is not None or before is None:
            before = attempt
        if broken is None and _failed(attempt):
            broken = attempt
    if broken is not None and session.state in ("failed", "suspended", "abandoned"):
        found.append(_seam(broken, None, faults, ahead, session.log > 0))
    return found


def _failed(attempt: AttemptEvidence) -> bool:
    return attempt.end_reason not in (
        "",
        "finished",
        "cancelled",
        "overtaken",
        "migrated",
        "rejected",
    )


def _seam(
    broken: AttemptEvidence,
    going_on: AttemptEvidence | None,
    faults: Faults,
    ahead: float,
    begun: bool,
) -> Seam:
    ended = broken.ended if broken.ended is not None else broken.started
    kind = _kind(broken, going_on)
    # A hedge is started because of the silence; what it overtakes ends only then.
    noticed = going_on.started if kind == "hedge" and going_on is not None else ended
    if kind == "return" and going_on is not None:
        noticed = going_on.started
    fault = faults.gateway(ended) if kind == "takeover" else None
    if kind in ("failover", "hedge"):
        fault = faults.of_node(broken.node, noticed)
    silence = (broken.detection_ms or 0.0) / 1000
    joined = going_on.first_token if going_on is not None else None
    durable = None
    if going_on is not None and going_on.durable is not None and joined is not None:
        durable = max(joined, going_on.durable - ahead)
    detection = None
    if fault is not None:
        since = fault.at if kind == "takeover" else max(fault.at, broken.started)
        detection = max(0.0, noticed - since)
    return Seam(
        kind=kind,
        fault=fault.kind if fault is not None else "",
        began=min(ended - silence, noticed),
        noticed=noticed,
        joined=joined,
        durable=durable,
        grade=going_on.grade if going_on is not None else "",
        onto=going_on.node if going_on is not None else "",
        detection=detection,
        before_first=not begun,
    )


def _kind(broken: AttemptEvidence, going_on: AttemptEvidence | None) -> SeamKind:
    if broken.cause == "gateway_crash":
        return "takeover"
    if going_on is None or going_on.kind == "failover":
        return "failover"
    if going_on.kind == "hedge":
        return "hedge"
    if going_on.kind == "migration":
        return "migration"
    return "return"


def gap_at(seam: Seam, gaps: Sequence[Gap]) -> Gap | None:
    """The longest silence of the reader that the seam lies in."""
    end = seam.joined if seam.joined is not None else float("inf")
    there = [
        gap for gap in gaps
        if gap.at >= seam.began - SLACK and gap.at - gap.seconds <= end + SLACK
    ]  # fmt: skip
    return max(there, key=lambda gap: gap.beyond, default=None)


def origin(
    record: StreamRecord,
    gap: Gap,
    found: Sequence[Seam],
    faults: Faults,
    nodes: Collection[str] = (),
) -> Origin:
    """What a silence comes from. The reader's own cut comes first: nobody could have reached it.

    ``nodes``: those that the answer ran on.
    """
    begin, end = gap.at - gap.seconds - SLACK, gap.at
    if faults.of_stream(record.index, begin, end) is not None:
        return "cut"
    touching = [seam for seam in found if gap_at(seam, [gap]) is not None]
    if any(seam.kind == "takeover" for seam in touching):
        return "takeover"
    if faults.during("gateway_kill", begin, end) is not None:
        return "gateway"
    if faults.during("postgres_restart", begin, end) is not None:
        return "postgres"
    if any(seam.is_failover for seam in touching):
        return "failover"
    if any(faults.struck(node, begin, end) for node in nodes):
        return "slow"
    if faults.during("redis_restart", begin, end, AFTER_FAULT) is not None:
        return "redis"
    return "other"
