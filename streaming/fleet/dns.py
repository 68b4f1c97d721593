"""Nodes of a name: one for each of its addresses, as a headless service of Kubernetes has them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from psycopg_pool import AsyncConnectionPool

from streaming.fleet.node_table import NodeNote, add_notes

logger = logging.getLogger(__name__)

Row = dict[str, Any]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, for a port. Raises ``OSError`` when that can't be found out."""

NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

# A new address is as its name is: no work for it while the name is being drained.
_ADD = """
INSERT INTO streaming_inferencenode (name, dialect, base_url, admin_state, source, weight, options,
    created_at, health, health_reason, models_served, parent_id, failover, hedging, defragment)
SELECT address.name, parent.dialect, address.base_url, parent.admin_state, 'dns', parent.weight,
    parent.options - 'dns', now(), 'unknown', '', '[]', parent.id,
    parent.failover, parent.hedging, parent.defragment
FROM streaming_inferencenode parent, unnest(%(names)s::text[], %(urls)s::text[]) address(name, base_url)
WHERE parent.id = %(parent)s ON CONFLICT DO NOTHING RETURNING id, name
"""
_FOLLOW = """
UPDATE streaming_inferencenode child
SET parent_id = parent.id, dialect = parent.dialect, base_url = address.base_url,
    weight = parent.weight, options = parent.options - 'dns'
FROM streaming_inferencenode parent, unnest(%(names)s::text[], %(urls)s::text[]) address(name, base_url)
WHERE parent.id = %(parent)s AND child.source = 'dns' AND child.name = address.name
    AND (child.parent_id, child.dialect, child.base_url, child.weight, child.options)
        IS DISTINCT FROM
        (parent.id, parent.dialect, address.base_url, parent.weight, parent.options - 'dns')
RETURNING child.id, child.name
"""
# Without a parent an address takes no work, and is removed when nothing runs there. That a name has
# no address at all is often a fault of the resolver: then only those leave that do not answer.
_LEAVE = """
UPDATE streaming_inferencenode SET parent_id = NULL, admin_state_at = now()
WHERE parent_id = %(parent)s AND NOT name = ANY(%(names)s)
    AND (cardinality(%(names)s::text[]) > 0 OR health = 'down')
RETURNING id, name
"""


async def system_resolve(host: str, port: int) -> list[str]:
    """What the system's resolver says. Raises ``OSError``."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


class AddressBook:
    """Keeps the nodes that belong to names. ``names`` are the rows whose addresses are wanted."""

    def __init__(self, pool: AsyncConnectionPool, resolve: Resolve, by: str) -> None:
        self._pool = pool
        self._resolve = resolve
        self._by = by
        self._names: list[Row] = []
        self._hurry = asyncio.Event()

    def __repr__(self) -> str:
        return f"<AddressBook of {[row['name'] for row in self._names]}>"

    def want(self, names: list[Row]) -> None:
        """The names as they are configured now."""
        if _configured(names) != _configured(self._names):
            self._hurry.set()
        self._names = names

    def hurry(self) -> None:
        """Look at once."""
        self._hurry.set()

    async def wait(self, seconds: float) -> None:
        """Return when it is time to look, ``seconds`` from now at the latest."""
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass
        self._hurry.clear()

    async def refresh(self) -> None:
        """Look all names up and store their addresses. Raises ``psycopg.Error``."""
        for row in list(self._names):
            address = urlsplit(row["base_url"])
            port = address.port or (443 if address.scheme == "https" else 80)
            try:
                found = await self._resolve(address.hostname or "", port)
            except OSError as exc:
                if getattr(exc, "errno", None) not in NO_SUCH_NAME:
                    # Whatever it had, it has until somebody knows better.
                    logger.info("the addresses of %s are not known: %s", row["name"], exc)
                    continue
                found = []
            await self._store(row, found)

    async def _store(self, row: Row, found: Sequence[str]) -> None:
        values = {
            "parent": row["id"],
            "names": [f"{row['name']}@{address}"[:100] for address in found],
            "urls": [with_address(row["base_url"], address) for address in found],
        }
        async with self._pool.connection() as connection, connection.transaction():
            notes = []
            for kind, reason, statement in (
                ("address_left", "it is no longer among the addresses of its name", _LEAVE),
                ("changed", "as its name was", _FOLLOW),
                ("added", "a new address of its name", _ADD),
            ):
                cursor = await connection.execute(statement, values)
                notes += [
                    NodeNote(node_id, name, kind, {"by": self._by, "reason": reason})
                    for node_id, name in await cursor.fetchall()
                ]
            if notes:
                await add_notes(connection, notes)


def with_address(base_url: str, address: str) -> str:
    """The URL with the address in place of the host's name."""
    parts = urlsplit(base_url)
    host = f"[{address}]" if ":" in address else address
    netloc = f"{host}:{parts.port}" if parts.port else host
    return parts._replace(netloc=netloc).geturl()


def _configured(names: list[Row]) -> list[tuple[Any, ...]]:
    columns = ("id", "name", "dialect", "base_url", "weight", "options", "admin_state")
    return [tuple(row[column] for column in columns) for row in names]
