"""Real gateway processes on a real PostgreSQL and Redis, for tests that kill and freeze things.

    with Stack(gateways=2, engine_nodes=[f"a=vllm+{engine.url}"]) as stack:
        key = stack.api_key()
        httpx.post(stack.gateway(0).url + "/v1/chat/completions", headers={"Authorization": f"Bearer {key}"}, …)
        stack.gateway(0).kill()
        stack.sql("SELECT count(*) FROM streaming_session")

Each stack has a database of its own, copied from a migrated template, and a Redis database of its
own. Inside pytest use the fixture ``start_stack``: it ends the stack with the test.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
import redis as redis_client

from gateway_project.embedded.postgres import Postgres
from gateway_project.embedded.process import free_port, spawn
from gateway_project.embedded.redis import Redis
from tests import services

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 20.0
LOG_TAIL = 6000

_numbers = itertools.count(1)
_templates: dict[str, str] = {}  # by server URL: the name of its migrated template database


class Gateway:
    """One gateway process; ``url`` and ``port`` stay the same over :meth:`start_again`."""

    def __init__(
        self,
        name: str,
        env: Mapping[str, str],
        log: Path,
        *,
        host: str = "127.0.0.1",
        arguments: Sequence[str] = (),
        code: Path = ROOT,
    ) -> None:
        self.name = name
        self.code = code
        self.env = env
        self.host = host
        self._arguments = arguments
        self.log_path = log
        self.port = 0
        self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def websocket_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. Also ends a process that is stopped."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """SIGTERM, without waiting: its streams may finish."""
        self.process.terminate()

    def wait(self, seconds: float = 30.0) -> int:
        """The exit code. Raises ``subprocess.TimeoutExpired``."""
        return self.process.wait(seconds)

    def stop(self) -> None:
        """SIGSTOP: frozen, with all its connections open."""
        self.process.send_signal(signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT: it goes on as if nothing had happened."""
        self.process.send_signal(signal.SIGCONT)

    def start_again(self) -> None:
        """A new process on the same port, after the old one has ended; listening when this returns."""
        self.close()
        self._start()
        self.wait_until_ready()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _start(self) -> None:
        command = [sys.executable, "-m", "gateway_project.server", "--host", self.host]
        with self.log_path.open("ab") as log:
            self.process = spawn(
                [*command, "--port", str(self.port), *self._arguments],
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.code,
                death_signal=signal.SIGKILL,
            )

    def wait_until_ready(self) -> None:
        """Read the line ``READY <port>``. Raises ``AssertionError`` with the log."""
        stdout = self.process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], START_SECONDS)
        line = stdout.readline().decode() if readable else ""
        assert line.startswith("READY "), f"{self.name} did not start ({line!r}):\n{self.log}"
        self.port = int(line.split()[1])


class Stack:
    """``gateways`` processes start with the stack; more with :meth:`start_gateway`.

    ``env`` goes to every gateway, over the environment of the tests; ``arguments`` to its command. ``private_postgres`` and
    ``private_redis`` give the stack servers of its own, which it may stop and start; with ``durable``
    that PostgreSQL writes as production's does.
    """

    def __init__(
        self,
        *,
        gateways: int = 1,
        engine_nodes: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        private_postgres: bool = False,
        private_redis: bool = False,
        durable: bool = False,
    ) -> None:
        self._wanted = gateways
        self._env = dict(env or {})
        self._arguments = arguments
        self.engine_nodes = list(engine_nodes)
        self._private_postgres = private_postgres
        self._private_redis = private_redis
        self._durable = durable
        self.gateways: list[Gateway] = []
        self.postgres: Postgres | None = None
        self.redis: Redis | None = None

    def __enter__(self) -> Self:
        self._temporary = tempfile.TemporaryDirectory(prefix="unbroken-stack-")
        self.directory = Path(self._temporary.name)
        self.directory.chmod(0o755)
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.show_logs()
        self._close()

    # --- gateways ----------------------------------------------------------------------------------

    def gateway(self, number: int = 0) -> Gateway:
        return self.gateways[number]

    def start_gateway(self, *, host: str = "127.0.0.1", code: Path = ROOT, **env: str) -> Gateway:
        """One more gateway process, listening when this returns; ``code``: of another version."""
        gateway = self._spawn_gateway(env, host, code)
        gateway.wait_until_ready()
        return gateway

    def show_logs(self) -> None:
        """The end of each process's log, on stderr: pytest shows it below the failure."""
        for gateway in self.gateways:
            sys.stderr.write(f"\n--- {gateway.name} (pid {gateway.pid}, port {gateway.port})\n")
            sys.stderr.write(gateway.log[-LOG_TAIL:])

    # --- data --------------------------------------------------------------------------------------

    def sql(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run one statement in its own transaction; ``%s`` stands for each argument."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            cursor = connection.execute(query, arguments or None)
            return cursor.fetchall() if cursor.description else []

    def api_key(self, tenant: str = "acme", *, is_test: bool = False, **columns: Any) -> str:
        """A new key of ``tenant``, which is created when needed. ``columns`` of the key besides."""
        key = f"ub-{secrets.token_urlsafe(32)}"
        self.sql(
            "INSERT INTO streaming_tenant (name, display_name, created_at) VALUES (%s, '', now()) "
            "ON CONFLICT (name) DO NOTHING",
            tenant,
        )
        row = {
            "name": "tests",
            "prefix": key[:10],
            "key_hash": hashlib.sha256(key.encode()).hexdigest(),
            "is_test": is_test,
            "on_disconnect": "suspend",
            **columns,
        }
        marks = ", ".join(["%s"] * len(row))
        self.sql(
            f"INSERT INTO streaming_apikey (tenant_id, created_at, {', '.join(row)}) "
            f"SELECT id, now(), {marks} FROM streaming_tenant WHERE name = %s",
            *row.values(),
            tenant,
        )
        return key

    def manage(self, *arguments: str, code: Path = ROOT) -> str:
        """Run a management command on this stack's database; its output."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=code, env=self.env(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    # --- private servers ---------------------------------------------------------------------------

    def stop_postgres(self, *, kill: bool = False) -> None:
        """A fast shutdown, or with ``kill`` a crash."""
        assert self.postgres is not None, "Stack(private_postgres=True) has a server to stop"
        if kill:
            self._postgres_process.kill()
            self._postgres_process.wait()
        else:
            services.stop_postgres(self._postgres_process)

    def start_postgres(self) -> None:
        """Again, on the same files and port; lets clients in when this returns."""
        assert self.postgres is not None
        self._postgres_process = services.start_postgres(self.postgres)

    def restart_postgres(self) -> None:
        self.stop_postgres()
        self.start_postgres()

    def stop_redis(self) -> None:
        assert self.redis is not None, "Stack(private_redis=True) has a server to stop"
        services.stop_redis(self._redis_process)

    def start_redis(self) -> None:
        """Again, empty, on the same port."""
        assert self.redis is not None
        self._redis_process = services.start_redis(self.redis)

    def restart_redis(self) -> None:
        self.stop_redis()
        self.start_redis()

    # --- how it is put together --------------------------------------------------------------------

    def env(self, **extra: str) -> dict[str, str]:
        """The environment of this stack's processes."""
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "gateway_project.settings",
            "DATA_DIR": str(self.directory / "data"),
            "SECRET_KEY": "only for tests " * 5,
            "DATABASE_URL": self.database_url,
            "DATABASE_DIRECT_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            "ENGINE_NODES": ",".join(self.engine_nodes),
            "DATABASE_POOL_SIZE": "4",
            **self._env,
            **extra,
        }

    def _start(self) -> None:
        number = next(_numbers)
        if self._private_redis:
            self.redis = Redis(self.directory / "redis", free_port())
            self.start_redis()
            self.redis_url = self.redis.url()
        else:
            self.redis_url = _with_path(os.environ["REDIS_URL"], str(number % 15 + 1))
            redis_client.Redis.from_url(self.redis_url).flushdb()
        if self._private_postgres:
            self.postgres = Postgres(
                self.directory / "postgres", free_port(), durable=self._durable
            )
            self.start_postgres()
            server_url = self.postgres.url("postgres")
        else:
            server_url = os.environ["DATABASE_URL"]
        self._server_url = server_url
        self.database = f"stack_{os.getpid()}_{number}"
        template = _template(server_url)
        _administrate(server_url, f'CREATE DATABASE "{self.database}" TEMPLATE "{template}"')
        self.database_url = _with_path(server_url, self.database)
        for gateway in [self._spawn_gateway({}) for _ in range(self._wanted)]:
            gateway.wait_until_ready()

    def _spawn_gateway(
        self, env: Mapping[str, str], host: str = "127.0.0.1", code: Path = ROOT
    ) -> Gateway:
        name = f"gateway-{len(self.gateways)}"
        gateway = Gateway(
            name,
            self.env(**env),
            self.directory / f"{name}.log",
            host=host,
            arguments=self._arguments,
            code=code,
        )
        self.gateways.append(gateway)
        return gateway

    def _close(self) -> None:
        for gateway in self.gateways:
            gateway.close()
        if self.postgres is not None:
            _templates.pop(self._server_url, None)
            if self._postgres_process.poll() is None:
                self.stop_postgres(kill=True)
        elif hasattr(self, "database_url"):
            _administrate(self._server_url, f'DROP DATABASE "{self.database}" WITH (FORCE)')
        if self.redis is not None and self._redis_process.poll() is None:
            self.stop_redis()
        self._temporary.cleanup()


def _template(server_url: str) -> str:
    """The migrated database that stacks are copied from: made once per server and session."""
    if server_url not in _templates:
        name = f"template_{os.getpid()}"
        _administrate(server_url, f'DROP DATABASE IF EXISTS "{name}"', f'CREATE DATABASE "{name}"')
        url = _with_path(server_url, name)
        done = subprocess.run(
            [sys.executable, "manage.py", "migrate", "--verbosity=0", "--skip-checks"],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "gateway_project.settings",
                "DATABASE_URL": url,
                "DATABASE_POOL_SIZE": "0",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        _templates[server_url] = name
        if server_url == os.environ.get("DATABASE_URL"):
            atexit.register(_administrate, server_url, f'DROP DATABASE "{name}" WITH (FORCE)')
    return _templates[server_url]


def _administrate(server_url: str, *statements: str) -> None:
    """Run statements that can't be in a transaction."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def _with_path(url: str, path: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{path}"))
