"""Which processes make up a stack, and what each of them is told."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import string
import sys
from dataclasses import dataclass
from pathlib import Path

from gateway_project.embedded import llama, postgres, redis
from gateway_project.embedded.process import free_port
from gateway_project.server.shares import shared_memory
from gateway_project.supervisor.child import Child
from gateway_project.supervisor.console import say
from gateway_project.supervisor.supervisor import Supervisor
from streaming.conf import StreamingConf
from streaming.metrics import directory as metrics

BACKLOG = 4096
FILES_PER_STREAM = 2  # the reader's socket and the engine's
FILES_BESIDES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``database_url``, ``redis_url``: empty means "bring your own". ``base_dir`` holds the code."""

    host: str
    port: int
    processes: int
    demo_nodes: int
    demo: bool
    base_dir: Path
    data_dir: Path
    database_url: str
    database_direct_url: str
    redis_url: str
    engine_nodes: list[str]
    streaming: StreamingConf


def build(options: Options) -> Supervisor:
    """The supervisor of this stack, nothing started yet but the socket.

    Raises ``OSError`` when the address can't be listened on.
    """
    builder = _Builder(options)
    services = builder.services()
    nodes = builder.nodes()
    listener = listen(options.host, options.port)
    _allow_files(options.streaming.max_streams)
    host, port = listener.getsockname()[:2]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    return Supervisor(
        data_dir=options.data_dir,
        groups=[
            services,
            [builder.preparation(url)],
            nodes,
            builder.workers(),
            builder.gateways(listener, url),
        ],
        public={
            "url": url,
            "database_url": builder.database_url,
            "redis_url": builder.redis_url,
            "engine_nodes": builder.engine_nodes,
        },
    )


class _Builder:
    """Collects the URLs while the children are described: later ones are told about earlier ones."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.database_url = options.database_url
        self.database_direct_url = options.database_direct_url
        self.redis_url = options.redis_url
        self.engine_nodes = list(options.engine_nodes)
        self.logs = options.data_dir / "logs"
        self.metrics = options.data_dir / "run" / "metrics"

    def env(self, **extra: str) -> dict[str, str]:
        demo = {"DEMO": "true", "ALLOW_REHEARSAL": "true"} if self.options.demo else {}
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "gateway_project.settings",
            "DATA_DIR": str(self.options.data_dir),
            "DATABASE_URL": self.database_url,
            "DATABASE_DIRECT_URL": self.database_direct_url,
            "REDIS_URL": self.redis_url,
            "ENGINE_NODES": ",".join(self.engine_nodes),
            **demo,
            **extra,
        }

    def measured(self) -> dict[str, str]:
        """What tells a process to share its metrics with the others."""
        return {metrics.VARIABLE: str(self.metrics)}

    def forget_gauges(self, pid: int) -> None:
        """A process that shared its metrics has died."""
        metrics.forget_gauges(self.metrics, pid)

    def services(self) -> list[Child]:
        children = []
        if not self.database_url:
            server = postgres.Postgres(self.options.data_dir / "postgres", free_port())
            self.database_url = self.database_direct_url = server.url()
            children.append(postgres_child(server, log=self.logs / "postgres.log"))
        if not self.redis_url:
            store = redis.Redis(self.options.data_dir / "redis", free_port())
            self.redis_url = store.url()
            children.append(redis_child(store, log=self.logs / "redis.log"))
        return children

    def nodes(self) -> list[Child]:
        """Demo nodes ``node-a``, ``node-b``, …; a respawned one keeps its port and its name."""
        children = []
        for letter in string.ascii_lowercase[: self.options.demo_nodes]:
            name, port = f"node-{letter}", free_port()
            address = f"llamacpp+http://127.0.0.1:{port}"
            self.engine_nodes.append(f"{name}={address}")
            children.append(
                Child(
                    name=name,
                    what="llama.cpp with SmolLM2-135M-Instruct",
                    address=address,
                    port=port,
                    command=llama.command(port=port, name=name),
                    env=dict(os.environ),
                    cwd=self.options.base_dir,
                    log=self.logs / f"{name}.log",
                    says_ready=True,
                    start_seconds=llama.START_SECONDS,
                    stop_seconds=3.0,
                )
            )
        return children

    def preparation(self, url: str) -> Child:
        """Migrations and the like: runs to its end before anything else that uses the database."""
        direct = {"DATABASE_URL": self.database_direct_url or self.database_url}
        return Child(
            name="prepare",
            what="checks and migrations",
            runs_once=True,
            command=[sys.executable, "-m", "gateway_project.supervisor.prepare", url],
            env=self.env(**direct),
            cwd=self.options.base_dir,
            start_seconds=600.0,
        )

    def workers(self) -> list[Child]:
        celery = [sys.executable, "-m", "celery", "-A", "gateway_project.celery", "--quiet"]
        schedule = self.options.data_dir / "run" / "celerybeat-schedule"
        level = "--loglevel=WARNING"
        shutil.rmtree(self.metrics, ignore_errors=True)  # the last run's counters are over
        self.metrics.mkdir(parents=True)
        return [
            Child(
                name="worker",
                what="Celery worker",
                # One thread is plenty for sweeping up. Gossip and mingle are for many workers.
                command=[
                    *celery, "worker", "--pool=solo", "--without-gossip", "--without-mingle", level,
                ],
                # It warns at length about root; what it runs is ours and its messages are JSON.
                env=self.env(
                    PYTHONWARNINGS="ignore:You're running the worker", **self.measured()
                ),
                cwd=self.options.base_dir,
                ended=self.forget_gauges,
            ),
            Child(
                name="beat",
                what="Celery beat",
                command=[*celery, "beat", f"--schedule={schedule}", "--pidfile=", level],
                env=self.env(),
                cwd=self.options.base_dir,
            ),
        ]  # fmt: skip

    def gateways(self, listener: socket.socket, url: str) -> list[Child]:
        # Both are ours until we end: a respawned gateway inherits them again.
        descriptor = listener.detach()
        shares = shared_memory(self.options.processes)
        command = [sys.executable, "-m", "gateway_project.server", "--fd", str(descriptor)]
        return [
            Child(
                name=f"gateway-{number}",
                what="gateway",
                address=url,
                command=[*command, "--shares", f"{shares}:{number - 1}"],
                env=self.env(**self.measured()),
                cwd=self.options.base_dir,
                ended=self.forget_gauges,
                pass_fds=[descriptor, shares],
                says_ready=True,
                # The process itself ends its streams after the grace; a little more for the rest.
                stop_seconds=self.options.streaming.shutdown_grace + 5.0,
            )
            for number in range(1, self.options.processes + 1)
        ]


def postgres_child(server: postgres.Postgres, *, log: Path) -> Child:
    def ready() -> bool:
        if not server.is_ready():
            return False
        server.create_database()
        return True

    return Child(
        name="postgres",
        what="embedded PostgreSQL",
        address=f"127.0.0.1:{server.port}",
        port=server.port,
        command=server.command(),
        env=dict(os.environ),
        account=server.account(),
        cwd=Path("/"),
        log=log,
        prepare=server.prepare,
        ready=ready,
        start_seconds=postgres.START_SECONDS,
        # SIGINT is PostgreSQL's fast shutdown: SIGTERM would wait for every client to leave.
        death_signal=signal.SIGINT,
        stop_signal=signal.SIGINT,
        stop_seconds=30.0,
    )


def redis_child(store: redis.Redis, *, log: Path) -> Child:
    return Child(
        name="redis",
        what="embedded Redis",
        address=f"127.0.0.1:{store.port}",
        port=store.port,
        command=store.command(),
        env=dict(os.environ),
        stdin=store.configuration(),
        log=log,
        prepare=store.prepare,
        ready=store.is_ready,
        start_seconds=redis.START_SECONDS,
        stop_seconds=5.0,
    )


def listen(host: str, port: int) -> socket.socket:
    """The one listening socket that all gateway processes accept from."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def _allow_files(max_streams: int) -> None:
    """Raise the limit of open files as far as we may; say so when the streams won't fit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = FILES_PER_STREAM * max_streams + FILES_BESIDES
    if hard != resource.RLIM_INFINITY and needed > hard:
        say(
            "warning",
            f"MAX_STREAMS={max_streams} needs {needed} open files per process, the limit is {hard}: "
            f"raise it (ulimit -Hn) or set MAX_STREAMS={(hard - FILES_BESIDES) // FILES_PER_STREAM}",
        )
