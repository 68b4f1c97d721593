"""``/v1/diagnostics/…``: a stream of known pace, for measuring what stands between it and its reader."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson

from streaming.consumers.base import StreamConsumer, sse_headers
from streaming.consumers.openai import request_principal
from streaming.consumers.page import PageRequest
from streaming.consumers.request import Request
from streaming.errors import InvalidRequest
from streaming.runtime.gateway import current
from streaming.services.diagnostics import UNKNOWN, DiagnosticStream, streams

LONGEST = 400.0
SHORTEST_INTERVAL = 0.05
MOST_PAD = 4096
LOOK_SECONDS = 1.0
"""How long a stream goes on at most in a process that is being stopped."""

TOLD_HEADERS = (
    "accept-encoding",
    "idempotency-key",
    "last-event-id",
    "x-request-id",
    "x-unbroken-heartbeat",
    "x-unbroken-user",
)
"""The request headers that its sender is told have arrived, and how."""
TOLD_CHARACTERS = 200


class DiagnosticStreamConsumer(StreamConsumer):
    """``GET /v1/diagnostics/stream?seconds=&interval=&pad=``.

    ``open`` at once, a ``tick`` every ``interval`` seconds, ``end`` after ``seconds``. Nothing is
    sent in between, no keep-alive either: what is silent on purpose shows who cuts silence.
    """

    methods = ("GET",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        principal = await request_principal(gateway, request)
        seconds = _number(request.query, "seconds", 1.0, 0.0, LONGEST)
        interval = _number(request.query, "interval", 1.0, SHORTEST_INTERVAL, LONGEST)
        pad = "." * int(_number(request.query, "pad", 0.0, 0.0, MOST_PAD))
        with streams.running(principal) as stream:
            await self.start_stream(headers=sse_headers(str(stream.id), self.request_id))
            await self._event("open", self._opening(request, gateway.instance_id, stream))
            ticks = 0
            while (due := (ticks + 1) * interval) < seconds and await self._sleep(stream, due):
                ticks += 1
                await self._event("tick", {"n": ticks, **self._since(stream), "pad": pad})
            is_whole = await self._sleep(stream, seconds)
            await self._event("end", {"n": ticks, **self._since(stream), "complete": is_whole})

    def _opening(
        self, request: Request, instance_id: int, stream: DiagnosticStream
    ) -> dict[str, Any]:
        headers = {name: request.header(name) for name in TOLD_HEADERS}
        return {
            "id": str(stream.id),
            "instance": instance_id,
            "server_time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": request.client,
            "scheme": PageRequest(self.scope).scheme,  # as a trusted proxy says
            "http_version": self.scope.get("http_version", ""),
            "headers": {
                name: value[:TOLD_CHARACTERS]
                for name, value in headers.items()
                if value is not None
            },
        }

    def _since(self, stream: DiagnosticStream) -> dict[str, float]:
        return {"since": round(self._loop.time() - stream.began, 4)}

    async def _sleep(self, stream: DiagnosticStream, due: float) -> bool:
        """Until ``due`` seconds after its beginning; False when the process is to stop before."""
        while (left := stream.began + due - self._loop.time()) > 0:
            if current().draining:
                return False
            await asyncio.sleep(min(left, LOOK_SECONDS))
        return True

    async def _event(self, name: str, data: Mapping[str, Any]) -> None:
        await self.write(b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data)))


class DiagnosticEndConsumer(StreamConsumer):
    """``GET /v1/diagnostics/ended?id=``: whether, and when, this process has seen a stream end.

    ``state`` is ``running``, ``completed``, ``left`` (its reader was seen to leave) or ``unknown``:
    another process has it, another key began it, or it is long ago.
    """

    methods = ("GET",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        principal = await request_principal(gateway, request)
        try:
            wanted = UUID(request.query.get("id", ""))
        except ValueError:
            raise InvalidRequest("id must be that of a diagnostic stream.", param="id") from None
        stream = streams.find(principal, wanted)
        await self.respond_json(
            200,
            {
                "id": str(wanted),
                "instance": gateway.instance_id,
                "state": UNKNOWN if stream is None else stream.state,
                "seconds": None if stream is None else stream.seconds,
            },
        )


def _number(
    query: Mapping[str, str], name: str, default: float, least: float, most: float
) -> float:
    """Raises ``InvalidRequest``."""
    if name not in query:
        return default
    try:
        value = float(query[name])
    except ValueError:
        value = math.nan
    if not least <= value <= most:  # nor is NaN
        raise InvalidRequest(f"{name} must be {least:g} to {most:g}.", param=name)
    return value
