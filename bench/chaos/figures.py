"""The figures of a run, from its records and the evidence. Pure; what each means: ``definitions``."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from bench.chaos.deliveries import Deliveries
from bench.chaos.evidence import SessionEvidence
from bench.chaos.records import FaultRecord, Mode, Run, StreamRecord
from bench.chaos.seams import (
    AFTER_FAULT,
    CRASHES,
    NOTICED_SECONDS,
    Faults,
    Seam,
    gap_at,
    origin,
    seams,
)
from bench.chaos.statistics import cumulative, rate, spread, trials_for

BINS = 240
"""Moments of the time line."""
POINTS = 2000
"""Noticed silences that are drawn."""
EXAMPLES = 5
UNWRITTEN_MS = 50.0
"""Shorter silences are not in the records."""
BEYOND_ENGINES = ("gateway_kill", "redis_restart", "postgres_restart")
GROUPS = {
    "plain_engines": "plain clients, engine faults only",
    "plain_others": "plain clients, other faults too",
    "returning": "readers that come back",
    "unprotected": "straight from the engine, streamed",
    "unstreamed": "straight from the engine, not streamed",
}


class Tally:
    """Takes every stream once."""

    def __init__(self, run: Run, faults: Iterable[FaultRecord], clock_ahead: float = 0.0) -> None:
        self.run = run
        self.faults = Faults(faults)
        self.deliveries = Deliveries()
        self._ahead = clock_ahead
        self._usual_ms = 1000 / run.pace if run.pace else 0.0
        self._trials: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        self._why: dict[str, Counter[str]] = defaultdict(Counter)
        self._left = self._diverged = self._repeated = 0
        self._sent = {mode: array("d") for mode in ("unbroken", "unprotected", "unstreamed")}
        self._ended = {mode: array("d") for mode in self._sent}
        self._first_ms = {mode: array("d") for mode in self._sent}
        self._total_ms = {mode: array("d") for mode in self._sent}
        self._token_ms = {mode: array("d") for mode in self._sent}
        self._noticed_streams = 0
        self._noticed_by_origin: Counter[str] = Counter()
        self._gaps_by_origin: dict[str, list[float]] = defaultdict(list)
        self._points: list[dict[str, Any]] = []
        self._grades: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._away = 0
        self._judged: dict[str, list[bool]] = defaultdict(list)
        self._seam_ms: dict[str, list[float]] = defaultdict(list)
        self._recovery_ms: dict[str, list[float]] = defaultdict(list)
        self._detection_ms: dict[str, list[float]] = defaultdict(list)
        self._before_first_ms: list[float] = []
        self._machine: list[tuple[float, float]] = []
        self._noticed_seams: list[tuple[float, float]] = []
        self._behind: Counter[str] = Counter()
        self._reclaim_ms: list[float] = []
        self._reclaim_dead = 0
        self._reclaims: Counter[str] = Counter()

    # --- one stream --------------------------------------------------------------------------------

    def take(self, record: StreamRecord, session: SessionEvidence | None) -> None:
        self.deliveries.take(record, session)
        self._time(record)
        self._judge(record)
        self._repeated += record.repeated
        self._diverged += record.diverged
        if record.mode != "unbroken":
            return
        found = seams(session, self.faults, self._ahead) if session is not None else []
        nodes = {attempt.node for attempt in session.attempts} if session is not None else set()
        self._notice(record, found, nodes)
        for seam in found:
            self._join(record, seam)
        if session is not None:
            self._reclaim(session)

    def _time(self, record: StreamRecord) -> None:
        mode = record.mode
        self._sent[mode].append(record.sent)
        self._ended[mode].append(record.ended if record.ended is not None else self.run.ended)
        if record.first is not None:
            self._first_ms[mode].append((record.first - record.sent) * 1000)
        if record.whole and record.ended is not None:
            self._total_ms[mode].append((record.ended - record.sent) * 1000)
            if record.first is not None and record.tokens > 1 and record.transport != "none":
                each = (record.ended - record.first) / (record.tokens - 1)
                self._token_ms[mode].append(each * 1000)

    def _judge(self, record: StreamRecord) -> None:
        if record.left:
            self._left += 1
            return
        group = self._group(record)
        self._trials[group] += 1
        if not record.whole:
            self._hits[group] += 1
            self._why[group][record.fault or "not whole"] += 1

    def _group(self, record: StreamRecord) -> str:
        if record.mode != "unbroken":
            return record.mode
        if record.reader != "plain":
            return "returning"
        end = record.ended if record.ended is not None else self.run.ended
        others = record.cuts > 0 or any(
            self.faults.during(kind, record.sent, end) is not None for kind in BEYOND_ENGINES
        )
        return "plain_others" if others else "plain_engines"

    def _notice(self, record: StreamRecord, found: Sequence[Seam], nodes: Collection[str]) -> None:
        noticed = [gap for gap in record.gaps if gap.beyond > NOTICED_SECONDS]
        self._noticed_streams += bool(noticed)
        for gap in noticed:
            why = origin(record, gap, found, self.faults, nodes)
            self._noticed_by_origin[why] += 1
            self._gaps_by_origin[why].append(gap.beyond * 1000)
            if why == "other":
                self._machine.append((gap.at - gap.seconds, gap.at))
            if len(self._points) < POINTS:
                self._points.append({"at": gap.at, "beyond": gap.beyond, "origin": why})

    def _join(self, record: StreamRecord, seam: Seam) -> None:
        self._kinds[seam.kind] += 1
        if seam.kind == "return":  # the reader itself was away
            return
        first, joined = record.first, seam.joined
        over_before = first is not None and joined is not None and joined < first
        if seam.before_first or over_before:
            self._before_first_ms.append(((seam.joined or self.run.ended) - seam.began) * 1000)
            return
        gap = gap_at(seam, record.gaps)
        has_left = record.left and seam.joined is None  # as far as is known: nobody looked any more
        if has_left or (gap is not None and origin(record, gap, [], self.faults) == "cut"):
            self._away += 1
            return
        end = seam.durable or seam.joined or seam.noticed
        is_unwritten = self.faults.during("postgres_restart", seam.noticed, end, AFTER_FAULT)
        noticed = seam.joined is None or (gap is not None and gap.beyond > NOTICED_SECONDS)
        if noticed and seam.is_failover:
            until = gap.at if gap is not None else end
            self._behind["postgres" if is_unwritten else self._behind_noticed(seam, until)] += 1
            if gap is not None:
                self._noticed_seams.append((gap.at - gap.seconds, gap.at))
        group = "failover" if seam.is_failover else seam.kind
        self._judged[group].append(noticed)
        if seam.is_failover:
            self._grades["lost" if seam.joined is None else seam.grade or "unknown"] += 1
        fault = "postgres_restart" if is_unwritten else seam.fault or seam.kind
        if seam.joined is not None:
            self._seam_ms[fault].append(self._gap_ms(seam, seam.joined, gap and gap.beyond))
        if seam.recovery is not None:
            self._recovery_ms[fault].append(seam.recovery * 1000)
        if seam.detection is not None:
            self._detection_ms[fault].append(seam.detection * 1000)

    def _behind_noticed(self, seam: Seam, until: float) -> str:
        """What may have made a failover last so long, besides the fault that it came from."""
        if self.faults.struck(seam.onto, seam.noticed, until):
            return "onto"
        during = self.faults.during("gateway_kill", seam.noticed, until)
        return "gateway" if during is not None else "nothing"

    def _gap_ms(self, seam: Seam, joined: float, beyond: float | None) -> float:
        """What the reader has seen; where that is too short to be in its record, the gateway's word."""
        if beyond is not None:
            return beyond * 1000
        own = (joined - seam.began) * 1000 - self._usual_ms
        return min(UNWRITTEN_MS, max(0.0, own))

    def _reclaim(self, session: SessionEvidence) -> None:
        for attempt in session.attempts:
            if not attempt.reclaim:
                continue
            self._reclaims[attempt.reclaim] += 1
            if attempt.reclaimed is None or attempt.ended is None:
                continue
            node, ended = attempt.node, attempt.ended
            if self.faults.died(node, attempt.started, attempt.reclaimed):
                self._reclaim_dead += 1
                continue
            seconds = self.faults.reachable(node, ended, attempt.reclaimed)
            self._reclaim_ms.append(seconds * 1000)

    # --- all of them -------------------------------------------------------------------------------

    def figures(self, evidence: Mapping[str, Any]) -> dict[str, Any]:
        run = self.run
        crashes = [ms for kind in CRASHES for ms in self._recovery_ms.get(kind, ())]
        return {
            "run": {
                "name": run.name, "seed": run.seed, "cluster": run.cluster, "began": run.began,
                "ended": run.ended, "seconds": run.ended - run.began, "pace": run.pace,
                "arguments": run.arguments, "machine": run.machine,
            },
            "streams": {mode: len(sent) for mode, sent in self._sent.items() if len(sent)},
            "left": self._left,
            "diverged": self._diverged,
            "wrong_prefixes": getattr(run, "wrong_prefixes", 0),
            "repeated": self._repeated,
            "faults": dict(Counter(fault.kind for fault in self.faults.all)),
            "interruptions": {
                group: {
                    "title": title,
                    **asdict(rate(self._hits[group], self._trials[group])),
                    "examples": dict(self._why[group].most_common(EXAMPLES)),
                }
                for group, title in GROUPS.items()
                if self._trials[group]
            },
            "trials_for_a_hundred_thousandth": trials_for(1e-5),
            "noticed": {
                "streams": self._noticed_streams,
                "silences": dict(self._noticed_by_origin),
                "ms": _spreads(self._gaps_by_origin),
            },
            "failovers": {
                "kinds": dict(self._kinds),
                "grades": dict(self._grades),
                "away": self._away,
                "behind_noticed": dict(self._behind),
                "noticed_with_others": overlapping(self._noticed_seams, self._machine),
                "before_first_ms": asdict(spread(self._before_first_ms)),
                "noticed": {
                    group: asdict(rate(sum(judged), len(judged)))
                    for group, judged in self._judged.items()
                },
            },
            "seam_ms": _distributions(self._seam_ms),
            "recovery_ms": _distributions(self._recovery_ms),
            "recovery_crashes_ms": asdict(spread(crashes)),
            "detection_ms": _spreads(self._detection_ms),
            "reclaim": {
                "outcomes": dict(self._reclaims),
                "ms": asdict(spread(self._reclaim_ms)),
                "of_dead_nodes": self._reclaim_dead,
            },
            "tokens": self.deliveries.figures(evidence),
            "times": {mode: self._times(mode) for mode in self._sent if len(self._sent[mode])},
            "engines": evidence.get("engines") or {},
            "gateway": evidence.get("gateway"),
            "timeline": self._timeline(),
        }  # fmt: skip

    def _times(self, mode: Mode) -> dict[str, Any]:
        begun = self._sent[mode]
        seconds = max(begun) - min(begun)
        return {
            "qps": (len(begun) - 1) / seconds if seconds > 0 else None,
            "first_ms": asdict(spread(self._first_ms[mode])),
            "total_ms": asdict(spread(self._total_ms[mode])),
            "token_ms": asdict(spread(self._token_ms[mode])),
        }

    def _timeline(self) -> dict[str, Any]:
        """Seconds since the run began: how many protected streams were in flight, faults, silences."""
        begin = min((sent[0] for sent in self._sent.values() if len(sent)), default=self.run.began)
        begin = min(begin, self.run.began)
        end = max((max(ended) for ended in self._ended.values() if len(ended)), default=begin)
        end = max([end, *(fault.until for fault in self.faults.all)])
        width = max(end - begin, 1e-9)
        changes = [0] * (BINS + 1)
        for mode in self._sent:
            for sent, ended in zip(self._sent[mode], self._ended[mode], strict=True):
                changes[math.floor((sent - begin) / width * BINS)] += 1
                changes[min(BINS, math.floor((ended - begin) / width * BINS) + 1)] -= 1
        level, in_flight = 0, []
        for change in changes[:BINS]:
            level += change
            in_flight.append(level)
        return {
            "seconds": width,
            "in_flight": in_flight,
            "faults": [
                {"kind": fault.kind, "target": fault.target, "at": fault.at - begin,
                 "until": fault.until - begin, "streams": fault.streams}
                for fault in self.faults.all
                if fault.kind not in ("reader_cut", "proxy_cut")
            ],
            "silences": [{**point, "at": point["at"] - begin} for point in self._points],
        }  # fmt: skip


def compute(
    run: Run,
    streams: Iterable[StreamRecord],
    faults: Iterable[FaultRecord],
    sessions: Mapping[str, SessionEvidence],
    evidence: Mapping[str, Any],
) -> dict[str, Any]:
    """All figures, ready for JSON."""
    gateway = evidence.get("gateway") or {}
    tally = Tally(run, faults, gateway.get("clock_ahead", 0.0))
    for record in streams:
        tally.take(record, sessions.get(record.session))
    return tally.figures(evidence)


def overlapping(some: Iterable[tuple[float, float]], others: Iterable[tuple[float, float]]) -> int:
    """How many of ``some`` times, each from its begin to its end, touch any of ``others``."""
    ordered = sorted(others)
    begins = [begin for begin, _ in ordered]
    latest = list(accumulate((end for _, end in ordered), max))
    count = 0
    for begin, end in some:
        before = bisect_right(begins, end)  # of those, the one that ends last
        count += before > 0 and latest[before - 1] >= begin
    return count


def _spreads(values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return {kind: asdict(spread(some)) for kind, some in sorted(values.items())}


def _distributions(values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """By kind of fault, and of all: how they are spread, and the curve that is drawn."""
    every = {"all": [value for some in values.values() for value in some], **values}
    return {
        kind: {**asdict(spread(some)), "curve": cumulative(some)}
        for kind, some in every.items()
        if some
    }
