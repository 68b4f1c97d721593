"""Something that one process does at a time: a row that must be renewed, by the database's clock.

For example ``Lease(pool, "probe", "gateway 7")``: whoever holds it renews it each second; three
seconds after its holder has died, frozen or lost the database it is anybody's.
"""

from __future__ import annotations

import asyncio

from psycopg_pool import AsyncConnectionPool

LEASE_SECONDS = 3.0
RENEW_SECONDS = 1.0

_CLAIM = """
INSERT INTO streaming_lease AS lease (name, holder, until)
VALUES (%(name)s, %(holder)s, now() + %(seconds)s * interval '1 second')
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE lease.holder = excluded.holder OR lease.until < now()
RETURNING 1
"""


class Lease:
    """One process's hold on a lease, or its wish for it."""

    def __init__(
        self, pool: AsyncConnectionPool, name: str, holder: str, seconds: float = LEASE_SECONDS
    ) -> None:
        self.name = name
        self.holder = holder
        self._pool = pool
        self._seconds = seconds
        self._held_until = 0.0

    def __repr__(self) -> str:
        return f"<Lease {self.name} {'held' if self.is_held else 'not held'} by {self.holder}>"

    @property
    def is_held(self) -> bool:
        """Whether it is certainly ours now: never longer than the database thinks so."""
        return asyncio.get_running_loop().time() < self._held_until

    async def claim(self) -> bool:
        """Take it if it is free, renew it if it is ours; whether we hold it. Raises ``psycopg.Error``."""
        asked_at = asyncio.get_running_loop().time()
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                _CLAIM, {"name": self.name, "holder": self.holder, "seconds": self._seconds}
            )
            won = await cursor.fetchone() is not None
        self._held_until = asked_at + self._seconds if won else 0.0
        return won

    async def release(self) -> None:
        """Let others have it at once. Raises ``psycopg.Error``."""
        self._held_until = 0.0
        async with self._pool.connection() as connection:
            await connection.execute(
                "DELETE FROM streaming_lease WHERE name = %s AND holder = %s",
                (self.name, self.holder),
            )
