"""Doing what the schedule says, and writing down when it was really done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Condition, Event

import httpx

from bench.chaos import records
from bench.chaos.cluster import Cluster
from bench.chaos.records import FaultKind, FaultRecord
from bench.chaos.schedule import TAKES_AWAY, Planned


class Striker:
    """One thread for each target, from beginning to end: processes end with the thread that has
    started them, and what is slow to come back keeps nobody else waiting."""

    def __init__(
        self,
        cluster: Cluster,
        plan: Sequence[Planned],
        active: Callable[[], int],
        directory: Path,
        *,
        say: Callable[[str], None],
        all_at_once: bool = False,
    ) -> None:
        self._cluster = cluster
        self._plan = list(plan)
        self._active = active
        self._path = directory / "faults.jsonl"
        self._say = say
        self._all_at_once = all_at_once
        self._hands = {
            target: ThreadPoolExecutor(1, thread_name_prefix=target)
            for target in {fault.target for fault in plan}
        }
        self._stopped = Event()
        self._away: set[str] = set()
        self._changed = Condition()
        self._work: list[Future[None]] = []

    def start(self) -> None:
        """The schedule's time begins now."""
        began = time.monotonic()
        for fault in self._plan:
            hand = self._hands[fault.target]
            self._work.append(hand.submit(self._do, fault, began + fault.at))

    def stop(self) -> None:
        """No further faults; those that have begun are undone. Raises what went wrong with one."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        for work in self._work:
            work.result()

    def close(self) -> None:
        """End the threads, and with them the processes that they have started."""
        for hand in self._hands.values():
            hand.shutdown()

    def _do(self, fault: Planned, due: float) -> None:
        if self._stopped.wait(max(0.0, due - time.monotonic())) or not self._may(fault):
            return
        at, streams = time.time(), self._active()
        try:
            done = self._try(self._cluster.strike, fault)
            if done:
                self._stopped.wait(fault.seconds)
            done = self._try(self._cluster.undo, fault) and done
        finally:
            with self._changed:
                self._away.discard(fault.target)
                self._changed.notify_all()
        if not done:
            return
        record = FaultRecord(
            kind=fault.kind, target=fault.target, at=at, until=time.time(), streams=streams
        )
        records.append(self._path, [record])

    def _try(self, action: Callable[[FaultKind, str], None], fault: Planned) -> bool:
        """What cannot be done is told, and the run goes on: a command of somebody's own, for example."""
        try:
            action(fault.kind, fault.target)
        except (OSError, httpx.HTTPError) as trouble:
            self._say(f"{fault.kind} of {fault.target} was not done: {trouble!r}")
            return False
        return True

    def _may(self, fault: Planned) -> bool:
        """Wait until another of its kind is there: coming back takes as long as it takes."""
        if fault.kind not in TAKES_AWAY:
            return True
        targets = self._cluster.targets[fault.kind]
        with self._changed:
            while not self._stopped.is_set():
                others = set(targets) - self._away - {fault.target}
                if others or self._all_at_once or len(targets) == 1:
                    self._away.add(fault.target)
                    return True
                self._changed.wait()
        return False
