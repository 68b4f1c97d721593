"""One run from beginning to end: a cluster, readers, faults, and what is written down of it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from bench.chaos import evidence, gauges, records
from bench.chaos import options as naming
from bench.chaos.cluster import Cluster, local
from bench.chaos.faults import Striker
from bench.chaos.gauges import Gauges
from bench.chaos.given import GivenCluster
from bench.chaos.job import Job
from bench.chaos.records import FaultKind, FaultRecord, Run
from bench.chaos.schedule import LASTING, Planned, Rules, plan
from bench.stacks import machine
from gateway_project.embedded.process import spawn
from tests.stack import ROOT

QUESTIONS = 256
"""Different ones: so many that an answer of another question does not pass for the right one."""
SETTLED_WITHIN = 60.0
"""Seconds in which at least one more session must have been settled."""
LAST_STREAMS = 10.0
"""Seconds that streams get to end after Ctrl-C."""
TOLD_EVERY = 5.0
RESULTS = ROOT / "bench" / "results" / "chaos"


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
    directory: Path = options.directory or RESULTS / time.strftime(
        f"%Y%m%d-%H%M%S-{name}", time.gmtime()
    )
    directory.mkdir(parents=True, exist_ok=True)
    if (directory / "streams.jsonl").exists():
        raise FileExistsError(f"{directory} has a run already")
    facts = machine(Path(tempfile.gettempdir()))
    with _cluster(options) as cluster, ExitStack() as ends:
        ends.callback(cluster.keep_logs, directory)
        planned = schedule(options, cluster)
        proxies = _proxies(options, cluster, ends)
        job = _job(options, cluster, proxies, directory)
        say(f"{len(planned)} faults, {options.streams} streams, seed {options.seed}: {directory}")
        began = time.time()
        _read_and_strike(options, cluster, job, planned, directory, ends)
        wait_until_settled(cluster)
        told = Run(
            seed=options.seed, name=name, cluster=cluster.name, began=began, ended=time.time(),
            pace=job.pace, arguments=_as_json(options), machine=facts,
            wrong_prefixes=cluster.wrong_prefixes(),
        )  # fmt: skip
        (directory / "run.json").write_text(json.dumps(asdict(told), indent=1), encoding="utf-8")
        evidence.collect(directory, cluster.sql, cluster.nodes, records.streams(directory))
    return directory


def _read_and_strike(
    options: argparse.Namespace,
    cluster: Cluster,
    job: Job,
    planned: list[Planned],
    directory: Path,
    ends: ExitStack,
) -> None:
    """All streams, all faults. ``ends``: when the processes may end that replaced killed ones."""
    with (
        Gauges(directory, cluster.nodes, cluster.exporters),
        ReadersProcess(job, directory) as readers,
    ):
        striker = Striker(
            cluster, planned, lambda: readers.active, directory, say=say,
            all_at_once=options.all_at_once,
        )  # fmt: skip
        ends.callback(striker.close)
        try:
            striker.start()
            while not readers.wait(TOLD_EVERY):
                say(f"{readers.ended} of {readers.started} streams have ended")
        except KeyboardInterrupt:
            say("no more streams; those under way get a moment")
            readers.stop()
            striker.stop()
            if not readers.wait(LAST_STREAMS):
                readers.end()
                readers.wait(LAST_STREAMS)
        finally:
            striker.stop()
    with (directory / gauges.FILE).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(last)) + "\n" for last in cluster.last_readings())


def wait_until_settled(cluster: Cluster) -> None:
    """Until nothing of any session is under way, as long as there are fewer and fewer of them."""
    least, since = None, time.monotonic()
    while waiting := cluster.unsettled():
        if least is None or waiting < least:
            least, since = waiting, time.monotonic()
        elif time.monotonic() - since > SETTLED_WITHIN:
            say(f"{waiting} sessions are not settled")
            return
        time.sleep(0.3)


def _cluster(options: argparse.Namespace) -> AbstractContextManager[Cluster]:
    if options.cluster == "given":
        return nullcontext(GivenCluster(options.given))
    return local(
        options.cluster, nodes=options.nodes, gateways=options.gateways, pace=options.pace,
        environment=dict(pair.split("=", 1) for pair in options.set),
        shared=set(options.modes.split(",")) != {"unbroken"},
    )  # fmt: skip


def _proxies(options: argparse.Namespace, cluster: Cluster, ends: ExitStack) -> list[str]:
    """URLs of the gateways behind what cuts each connection, if anybody reads through it."""
    if options.proxied <= 0 or cluster.name == "given":
        return []
    ports = [str(urlsplit(url).port) for url in cluster.gateways]
    process = spawn(
        [sys.executable, "-m", "bench.chaos.proxy", str(options.proxy_seconds), *ports],
        stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    ends.callback(process.wait)
    ends.callback(process.kill)
    assert process.stdout is not None
    ends.callback(process.stdout.close)
    _, *own = process.stdout.readline().decode().split()
    if len(own) != len(ports):
        raise RuntimeError("the proxy did not start")
    return [f"http://127.0.0.1:{port}" for port in own]


def _job(options: argparse.Namespace, cluster: Cluster, proxies: list[str], directory: Path) -> Job:
    return Job(
        directory=str(directory), gateways=cluster.gateways, proxies=proxies,
        nodes=list(cluster.nodes.values()), key=cluster.key, model=cluster.model,
        questions=cluster.questions(QUESTIONS, options.tokens), modes=options.modes.split(","),
        readers=naming.readers_of(options.readers), streams=options.streams, rate=options.rate,
        seconds=options.minutes * 60, seed=options.seed,
        pace=options.pace if cluster.name == "simulator" else 0.0, cut=options.cut,
        leave=options.leave, proxied=options.proxied, proxy_seconds=options.proxy_seconds,
        silence=options.silence, patience=options.patience, exact=cluster.exact,
    )  # fmt: skip


def _as_json(options: argparse.Namespace) -> dict[str, Any]:
    return {name: str(v) if isinstance(v, Path) else v for name, v in vars(options).items()}


def say(text: str) -> None:
    """Progress, on stderr: the report alone is on stdout."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)
