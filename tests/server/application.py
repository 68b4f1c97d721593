"""The application behind the server under test: streams and failures of every kind."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from functools import cache

from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import path

from gateway_project.server import GatewayServer
from streaming.consumers.base import StreamConsumer, sse_headers
from streaming.consumers.heartbeat import PING, KeepAlive
from streaming.consumers.request import Request
from streaming.errors import GatewayError, RateLimited

logger = logging.getLogger(__name__)

#: What tests ask for at /state.
state: dict[str, float] = {"left": 0, "left_at": 0.0, "running": 0, "ended": 0}


class State(StreamConsumer):
    """The process as it sees itself."""

    async def handle(self, request: Request) -> None:
        current = {**state, "tasks": len(asyncio.all_tasks())}
        server = server_in_this_process()
        if server is not None:
            current["connections"] = len(server.connections)
            current["channels"] = len(server.channels)
        await self.respond_json(200, current)


@cache
def server_in_this_process() -> GatewayServer | None:
    gc.unfreeze()  # the server has frozen what there was at its start, itself included
    return next((obj for obj in gc.get_objects() if isinstance(obj, GatewayServer)), None)


class Echo(StreamConsumer):
    methods = ("GET", "POST")

    async def handle(self, request: Request) -> None:
        await self.respond_json(
            200,
            {
                "method": request.method,
                "body_bytes": len(request.body),
                "client": request.client,
                "query": request.query,
                "params": request.params,
                "request_id": request.request_id,
                "x-test": request.header("X-Test"),
                "headers": dict(request.headers),
                "root_path": self.scope.get("root_path", ""),
            },
        )


class Ticks(StreamConsumer):
    """``/ticks/<count>/<milliseconds>``: numbered events; tells when it was left or stopped."""

    async def handle(self, request: Request) -> None:
        state["running"] += 1
        try:
            await self.start_stream(headers=sse_headers("s", self.request_id))
            for number in range(request.params["count"]):
                await self.write(b"data: %d\n\n" % number)
                await asyncio.sleep(request.params["milliseconds"] / 1000)
            await self.write(b"data: [DONE]\n\n")
        finally:
            state["running"] -= 1
            state["ended"] += 1

    async def on_disconnect(self) -> None:
        state["left"] += 1
        state["left_at"] = time.time()


class Flood(StreamConsumer):
    """Writes as fast as the reader takes it; the mark of each event goes into ``/flood-state``."""

    async def handle(self, request: Request) -> None:
        state["running"] += 1
        try:
            await self.start_stream(headers=sse_headers("s", self.request_id))
            while True:
                await self.tell(b"data: " + b"x" * 1000 + b"\n\n")
        finally:
            state["running"] -= 1
            socket = self.scope.get("extensions", {}).get("unbroken.socket")
            if socket is not None:
                state["written"] = socket.written
                state["taken"] = socket.taken()

    async def tell(self, event: bytes) -> None:
        await self.write(event)


class Push(Flood):
    """The same without waiting, as long as there is room."""

    async def tell(self, event: bytes) -> None:
        if not self.write_now(event):
            await self.write(event)


class Cleanup(StreamConsumer):
    """A stream without end, whose cleanup takes a moment."""

    async def handle(self, request: Request) -> None:
        await self.start_stream(headers=sse_headers("s", self.request_id))
        state["running"] += 1
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            logger.info("cleanup done")

    async def on_disconnect(self) -> None:
        await asyncio.sleep(0.1)
        logger.info("hook done")


class Silent(StreamConsumer):
    """Nothing but keep-alives."""

    async def handle(self, request: Request) -> None:
        await self.start_stream(headers=sse_headers("s", self.request_id))
        with KeepAlive(self, 0.05) as keep_alive:
            await asyncio.sleep(0.2)
            keep_alive.change(0.02, PING, now=True)
            await asyncio.sleep(0.2)


class Fail(StreamConsumer):
    """``/fail/<how>``."""

    async def handle(self, request: Request) -> None:
        how = request.params["how"]
        if how.startswith("late"):
            await self.start_stream(headers=sse_headers("s", self.request_id))
            await self.write(b"data: first\n\n")
        if how.endswith("gateway-error"):
            raise RateLimited("slow down", retry_after=1.2)
        if how.endswith("cancelled"):
            raise asyncio.CancelledError
        if how.endswith("silent"):
            return
        raise ZeroDivisionError("by test")


class Stubborn(StreamConsumer):
    """Its in-band error fails as well."""

    async def handle(self, request: Request) -> None:
        await self.start_stream()
        raise ZeroDivisionError("by test")

    async def inband_error(self, error: GatewayError) -> None:
        raise LookupError("by test")


async def raw(scope, receive, send):
    """``/raw/<how>``: applications without our base class."""
    how = scope["url_route"]["kwargs"]["how"]
    if how.startswith("late"):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"b")]})
        await send({"type": "http.response.body", "body": b"data: first\n\n", "more_body": True})
    if how.endswith("exit"):
        raise SystemExit(3)
    if how.endswith("return"):
        return
    if how == "head-only":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"b")]})
    raise ZeroDivisionError("by test")


class Socket(AsyncWebsocketConsumer):
    """Commands: ``flood`` and ``push`` send for ever, ``fail`` raises, ``close`` closes, all else is echoed."""

    flooding = None

    async def receive(self, text_data=None, bytes_data=None):
        if text_data in ("flood", "push"):
            self.flooding = asyncio.create_task(self.flood(pushes=text_data == "push"))
        elif text_data == "fail":
            raise ZeroDivisionError("by test")
        elif text_data == "close":
            await self.close(code=1012, reason="see you ü" + "x" * 200)
        else:
            await self.send(text_data=text_data)

    async def flood(self, *, pushes):
        push = self.scope["extensions"]["unbroken.push"]
        state["running"] += 1
        try:
            while True:
                if not (pushes and push(b"x" * 1000)):
                    await self.send(text_data="x" * 1000)
        finally:
            state["running"] -= 1

    async def disconnect(self, code):
        if self.flooding:
            self.flooding.cancel()


class Runtime:
    """Stands in for the gateway's runtime; the log tells the order of things."""

    async def drain(self, timeout: float) -> None:
        logger.info("runtime drains for %.1f s", timeout)

    async def stop(self) -> None:
        logger.info("runtime stopped, %d running", state["running"])


async def start_runtime() -> Runtime:
    logger.info("runtime started")
    return Runtime()


async def start_runtime_never() -> Runtime:
    logger.info("runtime starting")
    await asyncio.Event().wait()
    raise AssertionError


async def start_runtime_failing() -> Runtime:
    raise ConnectionError("by test")


application = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                path("state", State.as_asgi()),
                path("echo/<int:number>", Echo.as_asgi()),
                path("ticks/<int:count>/<int:milliseconds>", Ticks.as_asgi()),
                path("flood", Flood.as_asgi()),
                path("push", Push.as_asgi()),
                path("cleanup", Cleanup.as_asgi()),
                path("silent", Silent.as_asgi()),
                path("fail/<how>", Fail.as_asgi()),
                path("stubborn", Stubborn.as_asgi()),
                path("raw/<how>", raw),
            ]
        ),
        "websocket": URLRouter([path("ws", Socket.as_asgi())]),
    }
)
