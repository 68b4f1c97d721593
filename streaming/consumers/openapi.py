"""``GET /v1/openapi.json``: the API as a document. Nobody has to say who they are."""

from __future__ import annotations

from streaming.api import document
from streaming.consumers.base import StreamConsumer
from streaming.consumers.request import Request

CACHED_SECONDS = 3600


class OpenApiConsumer(StreamConsumer):
    """The same for everybody until the next release, so caches may keep it."""

    async def handle(self, request: Request) -> None:
        body, etag = document()
        headers = [
            (b"etag", etag.encode()),
            (b"cache-control", b"public, max-age=%d" % CACHED_SECONDS),
            (b"access-control-allow-origin", b"*"),
        ]
        if request.header("if-none-match") == etag:
            await self._start(304, headers)
            await self.finish()
            return
        headers += [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        await self.start_stream(headers=headers)
        await self.write(body)
