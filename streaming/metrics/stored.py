"""Figures of others that only the database knows: read together with the gateway's own.

Who has some registers them when the process starts; streaming knows nothing of what they mean.
"""

from __future__ import annotations

from typing import Protocol

import psycopg
from prometheus_client.metrics_core import Metric


class StoredFamilies(Protocol):
    """Metrics that are read from the database now and then, by every process."""

    def empty(self) -> list[Metric]:
        """The metrics without a value, as long as they were not read."""

    async def read(self, connection: psycopg.AsyncConnection) -> list[Metric]:
        """The metrics as of now. Indexed statements only: it runs every ten seconds."""


registered: list[StoredFamilies] = []


def register(families: StoredFamilies) -> None:
    """Have them read and exposed. Registering again what is registered changes nothing."""
    if families not in registered:
        registered.append(families)
