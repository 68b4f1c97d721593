"""``--runtime bench.unwritten:start``: a gateway that shows tokens without writing them down.

Sessions, attempts and ends are written as ever; of tokens PostgreSQL hears nothing. What the write-ahead
log costs is the difference to this. For measuring only: whatever such a process shows is lost with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from streaming.runtime import gateway
from streaming.runtime.journal import Journal, Passed
from streaming.runtime.token_log import Batch


class Unwritten(Journal):
    async def _write_tokens(self, batches: Sequence[Batch]) -> Passed:
        return dict.fromkeys(range(1, len(batches) + 1), False)


async def start() -> gateway.Gateway:
    gateway.Journal = Unwritten  # type: ignore[misc]
    return await gateway.start()
