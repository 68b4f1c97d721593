"""Diagnostic streams: what ``manage.py doctor`` measures the way to the gateway with.

No engine and no session stands behind one. Each process remembers how its latest ones ended, so that
who has closed one can ask whether the gateway noticed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from streaming.core.ids import uuid7
from streaming.errors import NotPermitted, RateLimited
from streaming.runtime.live import Principal

AT_ONCE = 16
"""Of one API key, in each process."""
REMEMBERED = 512

RUNNING, COMPLETED, LEFT = "running", "completed", "left"
UNKNOWN = "unknown"


@dataclass(slots=True)
class DiagnosticStream:
    """``began`` and ``ended``: loop times."""

    id: UUID
    api_key_id: int
    began: float
    state: str = RUNNING
    ended: float | None = None

    @property
    def seconds(self) -> float | None:
        """How long it has lasted; None while it does."""
        return None if self.ended is None else self.ended - self.began


class DiagnosticStreams:
    """Those of this process."""

    def __init__(self) -> None:
        self._streams: OrderedDict[UUID, DiagnosticStream] = OrderedDict()
        self._running: Counter[int] = Counter()

    def __repr__(self) -> str:
        return f"<DiagnosticStreams: {self._running.total()} running>"

    @contextmanager
    def running(self, principal: Principal) -> Iterator[DiagnosticStream]:
        """One more; it ends with the block. Raises ``NotPermitted``, ``RateLimited``."""
        key = _key_of(principal)
        if self._running[key] >= AT_ONCE:
            raise RateLimited(
                f"This API key has {AT_ONCE} diagnostic streams here already.", retry_after=1
            )
        loop = asyncio.get_running_loop()
        stream = DiagnosticStream(uuid7(), key, loop.time())
        self._streams[stream.id] = stream
        while len(self._streams) > REMEMBERED:
            self._streams.popitem(last=False)
        self._running[key] += 1
        try:
            yield stream
            stream.state = COMPLETED
        finally:
            if stream.state == RUNNING:
                stream.state = LEFT
            stream.ended = loop.time()
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def find(self, principal: Principal, stream_id: UUID) -> DiagnosticStream | None:
        """None: not one of this key, or not of this process. Raises ``NotPermitted``."""
        key = _key_of(principal)
        stream = self._streams.get(stream_id)
        return stream if stream is not None and stream.api_key_id == key else None


def _key_of(principal: Principal) -> int:
    if principal.api_key_id is None or principal.embed is not None:
        raise NotPermitted("Diagnostic streams are for API keys.")
    return principal.api_key_id


streams = DiagnosticStreams()
