"""What is struck: gateways, engines, Redis and PostgreSQL of our own, as in production, on this machine."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.chaos.evidence import Sql
from bench.chaos.gauges import Reading
from bench.chaos.job import Question
from bench.chaos.nodes import LlamaNode, Node, SimulatedNode
from bench.chaos.records import FaultKind
from gateway_project.embedded import llama
from gateway_project.embedded.process import spawn
from tests.stack import ROOT, Gateway, Stack

CELERY = [sys.executable, "-m", "celery", "-A", "gateway_project.celery", "--quiet"]
NODE_FAULTS: tuple[FaultKind, ...] = (
    "node_kill", "node_stop", "node_freeze", "node_reset", "node_slow",
)  # fmt: skip
_UNSETTLED = """
SELECT (SELECT count(*) FROM streaming_outboxmessage WHERE handled_at IS NULL AND kind <> 'audit')
    + (SELECT count(*) FROM streaming_streamsession
       WHERE state IN ('created', 'streaming', 'recovering'))
"""
START_SECONDS = 180.0
ENVIRONMENT = {
    "LOG_LEVEL": "WARNING",
    "DATABASE_POOL_SIZE": "8",
}


class Cluster(ABC):
    """Something that answers, can be hurt, and says afterwards what it knows."""

    name: str
    exact: bool
    """Its engines always give the answer that was given before."""
    model: str
    key: str

    @property
    @abstractmethod
    def gateways(self) -> list[str]:
        """URLs."""

    @property
    @abstractmethod
    def nodes(self) -> dict[str, str]:
        """URLs, by name, of engines that can be asked directly; empty where they cannot."""

    @property
    def exporters(self) -> dict[str, str]:
        """The pages, by node, of the DCGM exporters of their GPUs; none where there are none."""
        return {}

    @property
    @abstractmethod
    def targets(self) -> Mapping[FaultKind, Sequence[str]]:
        """Whom each kind of fault may hit; kinds that it cannot do are left out."""

    @abstractmethod
    def strike(self, kind: FaultKind, target: str) -> None:
        """Do it."""

    @abstractmethod
    def undo(self, kind: FaultKind, target: str) -> None:
        """Return when the target works again."""

    @abstractmethod
    def questions(self, count: int, tokens: int) -> list[Question]:
        """With the answers that are given when nothing breaks."""

    def last_readings(self) -> list[Reading]:
        """What engines had counted when they were killed."""
        return []

    def wrong_prefixes(self) -> int:
        """Continuations that an engine has refused, since it would never have said that."""
        return 0

    @property
    def sql(self) -> Sql | None:
        """Asks the gateway's database; None where it is out of reach."""
        return None

    def unsettled(self) -> int:
        """Sessions that have not ended, or have not been billed."""
        return 0 if self.sql is None else int(self.sql(_UNSETTLED)[0][0])

    def keep_logs(self, directory: Path) -> None:  # noqa: B027  not everybody has any
        """Copy what the processes have said beside the records."""


class LocalCluster(Cluster):
    """Two gateways by default, nodes, a durable PostgreSQL, a Redis, a Celery worker and beat."""

    def __init__(self, name: str, nodes: Sequence[Node], stack: Stack) -> None:
        self.name = name
        self.stack = stack
        self.exact = name == "simulator"
        self.model = llama.MODEL if name == "llamacpp" else "sim-model"
        self.key = stack.api_key("chaos")
        self._nodes = {node.name: node for node in nodes}
        self._gateways = {gateway.name: gateway for gateway in stack.gateways}
        self._helpers = Helpers(stack)

    @property
    def gateways(self) -> list[str]:
        return [gateway.url for gateway in self._gateways.values()]

    @property
    def nodes(self) -> dict[str, str]:
        return {node.name: node.url for node in self._nodes.values()}

    @property
    def targets(self) -> Mapping[FaultKind, Sequence[str]]:
        able = next(iter(self._nodes.values())).able
        return {
            **{kind: list(self._nodes) for kind in NODE_FAULTS if kind in able},
            "gateway_kill": list(self._gateways),
            "redis_restart": ["redis"],
            "postgres_restart": ["postgres"],
        }

    def strike(self, kind: FaultKind, target: str) -> None:
        if kind in NODE_FAULTS:
            self._nodes[target].strike(kind)
        elif kind == "gateway_kill":
            self._gateways[target].kill()
        elif kind == "redis_restart":
            self.stack.stop_redis()
        elif kind == "postgres_restart":
            self.stack.stop_postgres()

    def undo(self, kind: FaultKind, target: str) -> None:
        if kind in NODE_FAULTS:
            self._nodes[target].undo(kind)
        elif kind == "gateway_kill":
            start_again(self._gateways[target])
        elif kind == "redis_restart":
            self.stack.start_redis()
        elif kind == "postgres_restart":
            self.stack.start_postgres()

    def questions(self, count: int, tokens: int) -> list[Question]:
        node = next(iter(self._nodes.values()))
        return node.questions(count, tokens, self.gateways[0], self.key)

    def last_readings(self) -> list[Reading]:
        return [reading for node in self._nodes.values() for reading in node.readings]

    def wrong_prefixes(self) -> int:
        for node in self._nodes.values():
            node.read()
        return sum(node.wrong_prefixes for node in self._nodes.values())

    @property
    def sql(self) -> Sql:
        return self.stack.sql

    def keep_logs(self, directory: Path) -> None:
        for log in self.stack.directory.glob("*.log"):
            (directory / log.name).write_bytes(log.read_bytes())

    def close(self) -> None:
        self._helpers.close()


def start_again(gateway: Gateway) -> None:
    """As a supervisor does: without PostgreSQL a gateway does not start, so it is tried again.

    Raises ``AssertionError`` with its log.
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            gateway.start_again()
            return
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


class Helpers:
    """Worker and beat, started again when they end, as ``serve`` does."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        schedule = stack.directory / "celerybeat-schedule"
        self._commands = {
            "worker": ["worker", "--pool=solo", "--without-gossip", "--without-mingle"],
            "beat": ["beat", f"--schedule={schedule}", "--pidfile="],
        }
        self._ended = threading.Event()
        # The thread that starts a process must outlive it.
        self._thread = threading.Thread(target=self._tend, name="helpers")
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _tend(self) -> None:
        running: dict[str, subprocess.Popen[bytes]] = {}
        while not self._ended.wait(0.5 if running else 0.0):
            for name, command in self._commands.items():
                if name not in running or running[name].poll() is not None:
                    running[name] = self._start(name, command)
        for process in running.values():
            process.kill()
            process.wait()

    def _start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self._stack.directory / f"{name}.log").open("ab") as log:
            return spawn(
                [*CELERY, *command, "--loglevel=WARNING"],
                env=self._stack.env(PYTHONWARNINGS="ignore:You're running the worker"),
                cwd=ROOT, stdout=log, stderr=log, death_signal=signal.SIGKILL,
            )  # fmt: skip


@contextmanager
def local(
    name: str,
    *,
    nodes: int,
    gateways: int,
    pace: float,
    environment: Mapping[str, str],
    shared: bool,
) -> Iterator[LocalCluster]:
    """``simulator`` or ``llamacpp``. ``shared``: others than the gateways ask its nodes, too."""
    options = "exclusive=off" if shared else ""
    with ExitStack() as ends:
        fleet: list[Node] = []
        for number in range(nodes):
            title = f"node-{chr(ord('a') + number)}"
            node = (
                SimulatedNode(title, pace, options)
                if name == "simulator"
                else LlamaNode(title, options)
            )
            ends.callback(node.close)
            fleet.append(node)
        stack = ends.enter_context(
            Stack(
                gateways=gateways, engine_nodes=[node.spec for node in fleet],
                env={**ENVIRONMENT, **environment}, private_postgres=True, private_redis=True, durable=True,
            )
        )  # fmt: skip
        cluster = LocalCluster(name, fleet, stack)
        ends.callback(cluster.close)
        yield cluster
