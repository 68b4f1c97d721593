"""``--runtime bench.unwritten:start``: a gateway that shows tokens without writing them down.

Sessions, attempts and ends are written as ever; of tokens PostgreSQL hears nothing. What the write-ahead
log costs is the difference to this. For measuring only: whatever such a process shows is lost with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from streaming.runtime import gateway
from streaming.runtime.journal import Journal
from streaming.runtime.token_log import Batch


class Unwritten(Journal):
    async def _write_tokens(self, batches: Sequence[Batch]) -> dict[UUID, bool]:
        return {batch.log.session_id: False for batch in batches}


async def start() -> gateway.Gateway:
    gateway.Journal = Unwritten  # type: ignore[misc]
    return await gateway.start()
