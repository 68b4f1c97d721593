"""A reverse proxy that does what proxies in front of gateways are found doing."""

from __future__ import annotations

import asyncio
import gzip
import threading
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "content-length", "host"}


class Middlebox:
    """Forwards to ``target``, a base URL, from a thread of its own; ``url`` is its address.

    ``hold``: seconds for which it gathers what it passes on. ``compress``: event streams for who
    takes it. ``cut_idle``, ``cut_total``: seconds after which it ends a response, cleanly or by a
    reset. ``upgrades``: whether it lets WebSockets through. ``strip``: headers, in lower case, that it
    takes out both ways. ``most``: bytes of a request. ``clings``: it reads on when its client has left.
    ``clock``: seconds by which its ``Date`` is ahead.
    """

    def __init__(
        self,
        target: str,
        *,
        hold: float = 0.0,
        compress: bool = False,
        cut_idle: float | None = None,
        cut_total: float | None = None,
        upgrades: bool = True,
        strip: tuple[str, ...] = (),
        most: int = 1 << 30,
        clings: bool = False,
        clock: float = 0.0,
    ) -> None:
        self.target = target
        self.hold, self.compress, self.most, self.clock = hold, compress, most, clock
        self.cut_idle, self.cut_total = cut_idle, cut_total
        self.upgrades, self.strip, self.clings = upgrades, set(strip), clings
        self._started: Future[int] = Future()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=asyncio.run, args=(self._main(),), daemon=True)
        self._thread.start()
        self.port = self._started.result(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)

    async def _main(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(
            application, handler_cancellation=not self.clings, shutdown_timeout=0.1, access_log=None
        )
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with aiohttp.ClientSession(
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
        ) as self._client:
            self._started.set_result(runner.addresses[0][1])
            await self._ended.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if (request.content_length or 0) > self.most:
            return web.Response(status=413, text="<h1>413 Request Entity Too Large</h1>")
        if request.headers.get("upgrade", "").lower() == "websocket":
            if not self.upgrades:
                return web.Response(status=400, text="no upgrades here")
            return await self._socket(request)
        headers = self._passed(request.headers)
        async with self._client.request(
            request.method, f"{self.target}{request.path_qs}",
            headers=headers, data=await request.read() or None, allow_redirects=False,
        ) as answer:  # fmt: skip
            return await self._answer(request, answer)

    async def _answer(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        headers = self._passed(answer.headers)
        headers["date"] = format_datetime(
            datetime.now(UTC) + timedelta(seconds=self.clock), usegmt=True
        )
        packs = self.compress and "gzip" in request.headers.get("accept-encoding", "")
        if packs and answer.content_type == "text/event-stream":
            headers["content-encoding"] = "gzip"
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        began = self._loop.time()
        held, sent_at = b"", began
        try:
            while True:
                limit = self._left(began)
                try:
                    async with asyncio.timeout(limit):
                        data = await answer.content.readany()
                except TimeoutError:
                    if self.cut_idle is None and request.transport is not None:
                        request.transport.abort()
                    return response
                held += data
                if held and (not data or self._loop.time() - sent_at >= self.hold):
                    await response.write(gzip.compress(held) if packs else held)
                    held, sent_at = b"", self._loop.time()
                if not data:
                    await response.write_eof()
                    return response
        except ConnectionError:
            if self.clings:  # nobody told it that nobody reads
                while await answer.content.readany():
                    pass
            return response

    def _left(self, began: float) -> float | None:
        limits = [self.cut_idle] if self.cut_idle is not None else []
        if self.cut_total is not None:
            limits.append(max(0.0, began + self.cut_total - self._loop.time()))
        return min(limits, default=None)

    def _passed(self, headers: Any) -> dict[str, str]:
        return {
            name.lower(): value
            for name, value in headers.items()
            if name.lower() not in HOP_BY_HOP | self.strip
        }

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        protocols = [
            one for one in request.headers.get("sec-websocket-protocol", "").split(", ") if one
        ]
        theirs = web.WebSocketResponse(protocols=protocols)
        await theirs.prepare(request)
        headers = {
            name: value for name, value in request.headers.items()
            if name.lower() in ("authorization", "origin") and name.lower() not in self.strip
        }  # fmt: skip
        async with self._client.ws_connect(
            f"{self.target}{request.path_qs}", headers=headers, protocols=protocols
        ) as ours:
            pumps = [asyncio.create_task(_pump(*pair)) for pair in ((theirs, ours), (ours, theirs))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            with suppress(ConnectionError):
                await theirs.close()
        return theirs


async def _pump(source: Any, sink: Any) -> None:
    with suppress(ConnectionError):
        async for message in source:
            if message.type is aiohttp.WSMsgType.TEXT:
                await sink.send_str(message.data)
