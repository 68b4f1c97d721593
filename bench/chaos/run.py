"""One run from beginning to end: a cluster, readers, faults, and what is written down of it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from bench.chaos import options as naming
from bench.chaos import records
from bench.chaos.cluster import Cluster, keep_logs, local
from bench.chaos.faults import Striker
from bench.chaos.given import given
from bench.chaos.job import Job
from bench.chaos.records import FaultKind, FaultRecord, Run
from bench.chaos.schedule import LASTING, Planned, Rules, plan
from bench.stacks import machine
from tests.stack import ROOT

QUESTIONS = 256
"""Different ones: so many that an answer of another question does not pass for the right one."""
SETTLED_WITHIN = 60.0
"""Seconds in which at least one more session must have been settled."""
LAST_STREAMS = 10.0
"""Seconds that streams get to end after Ctrl-C."""
_WAITING = """
SELECT (SELECT count(*) FROM streaming_outboxmessage WHERE handled_at IS NULL AND kind <> 'audit')
    + (SELECT count(*) FROM streaming_streamsession
       WHERE state IN ('created', 'streaming', 'recovering'))
"""


class ReadersProcess:
    """``bench.chaos.readers``, with what it tells."""

    def __init__(self, job: Job, directory: Path) -> None:
        self.active = self.started = self.ended = 0
        self._path = directory / "faults.jsonl"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.chaos.readers"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,  # Ctrl-C is for us
        )  # fmt: skip
        self._write(json.dumps(asdict(job)))
        self._thread = threading.Thread(target=self._listen, name="readers")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._thread.join()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """No new streams."""
        self._write("stop")

    def end(self) -> None:
        """Leave those alone that are under way."""
        self._write("end")

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within that time. Raises ``RuntimeError`` if it has broken down."""
        self._thread.join(seconds)
        if not self._thread.is_alive() and (code := self._process.wait()) != 0:
            raise RuntimeError(f"the readers have ended with {code}")
        return not self._thread.is_alive()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "cut" in told:
                fault = FaultRecord(
                    kind=told["cut"], target=str(told["index"]), at=told["at"], until=told["at"],
                    streams=self.active,
                )  # fmt: skip
                records.append(self._path, [fault])
            else:
                self.active, self.started, self.ended = (
                    told["active"], told["started"], told["ended"],
                )  # fmt: skip


def schedule(options: argparse.Namespace, cluster: Cluster) -> list[Planned]:
    """What these options let happen to this cluster."""
    pairs = (fault.partition("=") for fault in options.faults.split(",") if fault)
    rates: dict[FaultKind, float] = {kind: float(rate) for kind, _, rate in pairs}  # type: ignore[misc]
    seconds = options.streams / options.rate
    if options.minutes:
        seconds = min(seconds, options.minutes * 60)
    lasting = {**LASTING, **({"node_kill": options.down} if options.down else {})}
    return plan(
        options.seed,
        Rules(
            seconds=seconds, per_minute=rates, targets=cluster.targets, regular=options.regular,
            each_once=options.each_once, all_at_once=options.all_at_once, recovery=options.recovery,
            lasting=lasting,
        ),
    )  # fmt: skip


def run(options: argparse.Namespace) -> Path:
    """The directory of the run. With Ctrl-C: of what there was of it until then."""
    name = options.preset or "chaos"
    directory: Path = options.directory or ROOT / "bench" / "results" / "chaos" / time.strftime(
        f"%Y%m%d-%H%M%S-{name}", time.gmtime()
    )
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / "streams.jsonl").exists():
        raise FileExistsError(f"{directory} has a run already")
    facts = machine(Path(tempfile.gettempdir()))
    with _cluster(options) as cluster:
        planned = schedule(options, cluster)
        began = time.time()
        say(f"{len(planned)} faults, {options.streams} streams, seed {options.seed}: {directory}")
        try:
            with _proxies(options, cluster) as proxies:
                _read_and_strike(options, cluster, planned, proxies, directory)
            settled = wait_until_settled(cluster)
            if not settled:
                say("some sessions were not settled in time")
            records.append(directory / "engines.jsonl", cluster.engine_records())
            ended = time.time()
            _write_run(options, directory, name, began, ended, facts)
            collect_evidence(directory, cluster)
        finally:
            cluster.keep_logs(directory)
    return directory


def _read_and_strike(
    options: argparse.Namespace,
    cluster: Cluster,
    planned: list[Planned],
    proxies: list[str],
    directory: Path,
) -> None:
    job = _job(options, cluster, proxies, directory)
    with ReadersProcess(job, directory) as readers:
        striker = Striker(
            cluster, planned, lambda: readers.active, directory, all_at_once=options.all_at_once
        )
        try:
            striker.start()
            while not readers.wait(5.0):
                say(f"{readers.ended} of {readers.started} streams have ended")
            striker.stop()
        except KeyboardInterrupt:
            say("no more streams; those under way may end (again: at once)")
            readers.stop()
            striker.stop()
            if not readers.wait(LAST_STREAMS):
                readers.end()
                readers.wait(LAST_STREAMS)
        finally:
            cluster.owner_of(striker)


def _job(
    options: argparse.Namespace, cluster: Cluster, proxies: list[str], directory: Path
) -> Job:
    return Job(
        directory=str(directory), gateways=cluster.gateways, proxies=proxies, nodes=cluster.nodes,
        key=cluster.key, model=cluster.model, questions=cluster.questions(QUESTIONS, options.tokens),
        modes=options.modes.split(","), readers=naming.readers_of(options.readers),
        streams=options.streams, rate=options.rate, seconds=options.minutes * 60, seed=options.seed,
        pace=options.pace if cluster.exact else 0.0, cut=options.cut, leave=options.leave,
        proxied=options.proxied, proxy_seconds=options.proxy_seconds, silence=options.silence,
        patience=options.patience, exact=cluster.exact,
    )  # fmt: skip
