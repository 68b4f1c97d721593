"""``StreamConsumer``: the HTTP consumer on which all streams stand.

Channels' own ``AsyncHttpConsumer`` waits for ``handle()`` before it looks at the next message, so
it does not see a client leave while it streams. This one watches ``receive()`` while the handler
runs, cancels it within milliseconds, and lets no exception out, since servers treat those badly.
It needs nothing but ASGI.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from typing import Any, ClassVar

import orjson
import psycopg
from channels.generic.http import AsyncHttpConsumer

from streaming.consumers import cross_origin
from streaming.consumers.page import Page
from streaming.consumers.request import (
    ClientDisconnected,
    Receive,
    Request,
    decoded_headers,
    read_request,
    request_id,
    route_of,
)
from streaming.core import log_fields
from streaming.errors import (
    GatewayError,
    Interrupted,
    JournalUnavailable,
    MethodNotAllowed,
    OriginNotAllowed,
    ShuttingDown,
)
from streaming.metrics.catalogue import ERRORS
from streaming.ports import ports
from streaming.tracing import ReaderSpan

logger = logging.getLogger(__name__)

Header = tuple[bytes, bytes]

# Servers take writes to a client that left without ever suspending the writer, so a handler that
# only writes would hold up its whole process, its own watcher included.
WRITES_PER_TURN = 64


class ResponseComplete(Exception):
    """Raised by ``start_stream`` to end the handler: a HEAD request wants no more than that."""


class StreamConsumer(AsyncHttpConsumer):
    """Override ``handle``; answer with ``respond_json``, or ``start_stream``, ``write``, ``finish``.

    Every ``write`` is one or more *whole* events, so that a keep-alive written by another task
    stands between events. A handler that is cancelled (the client left, or the process stops) gets
    ``cleanup_seconds`` to end.
    """

    methods: ClassVar[tuple[str, ...]] = ("GET",)
    open_to_pages: ClassVar[bool] = True
    """Whether pages of other origins may ask at all. ``handle`` checks that its tenant allows them."""
    cleanup_seconds: ClassVar[float] = 5.0
    traced: ClassVar[bool] = True
    """Whether its requests are worth a span, where somebody traces."""

    def __init__(self) -> None:
        super().__init__()
        #: Whether the response's head is out; from then on errors are told in-band.
        self.started = False
        self.finished = False
        #: Whether a write waits for a slow reader.
        self.writing = False
        #: ``loop.time()`` of the last write.
        self.last_write = 0.0
        self.request_id = ""
        #: Of the response's head; 0: none yet.
        self.status = 0
        #: Bytes of the body so far.
        self.sent_bytes = 0
        #: What the head says besides, whatever the answer is.
        self.extra_headers: list[Header] = []
        #: Whether the page of another origin that asks may read the answer.
        self.readable = False
        self.span: ReaderSpan | None = None
        self._writes = 0
        self._push: Callable[[bytes], bool] | None = None

    # For subclasses

    async def handle(self, request: Request) -> None:
        """Answer the request. May raise any GatewayError, before or after the head."""
        raise NotImplementedError

    async def on_disconnect(self) -> None:
        """Called once after the handler has ended because the client left; nothing can be sent.

        Runs to its end even when the process is being stopped, for at most ``cleanup_seconds``.
        """

    async def inband_error(self, error: GatewayError) -> None:
        """Tell an error inside a started stream. The stream is ended by the caller."""
        await self.write(b"data: " + orjson.dumps(error.as_openai()) + b"\n\n")

    async def start_stream(self, status: int = 200, headers: Iterable[Header] = ()) -> None:
        """Send the head at once. Raises ResponseComplete for HEAD: let it pass."""
        await self._start(status, headers)
        if self.scope["method"] == "HEAD":
            await self.finish()
            raise ResponseComplete
        await self.write(b"")

    async def write(self, data: bytes) -> None:
        """Send whole events; returns when the server has room for more.

        Cancelled while it waits, ``data`` is on its way nevertheless.
        """
        self._writes += 1
        self.sent_bytes += len(data)
        if self._writes % WRITES_PER_TURN == 0:
            await asyncio.sleep(0)
        self.last_write = self._loop.time()
        self.writing = True
        try:
            await self.base_send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            self.writing = False

    def write_now(self, data: bytes) -> bool:
        """``write`` without waiting; False, and nothing is sent, where the server has no room, or
        cannot do it."""
        push = self._push
        if push is None or self.writing:
            return False
        if data:
            if not push(data):
                return False
            self.sent_bytes += len(data)
            self.last_write = self._loop.time()
        return True

    async def finish(self) -> None:
        """End the response. Does nothing when it has ended."""
        if not self.finished:
            self.finished = True
            await self.base_send({"type": "http.response.body", "body": b"", "more_body": False})

    async def respond_empty(self, status: int) -> None:
        """Send a response without a body (204)."""
        await self._start(status, [])
        await self.finish()

    @property
    def socket(self) -> Any:
        """What the server tells about the connection's socket; None on other servers."""
        return self.scope.get("extensions", {}).get("unbroken.socket")

    async def respond_json(self, status: int, obj: Any, headers: Iterable[Header] = ()) -> None:
        """Send a whole JSON response."""
        body = orjson.dumps(obj)
        await self._start(
            status,
            [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                *headers,
            ],
        )
        self.finished = True
        self.sent_bytes += len(body)
        await self.base_send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, status: int, headers: Iterable[Header]) -> None:
        headers = [(name.lower(), value) for name, value in (*headers, *self.extra_headers)]
        if not any(name == b"x-request-id" for name, _ in headers):
            headers.append((b"x-request-id", self.request_id.encode()))
        headers += cross_origin.answer_headers(self.page.origin if self.readable else None)
        self.started = True
        self.status = status
        if self.span is not None:
            self.span.answered(status)
        await self.base_send({"type": "http.response.start", "status": status, "headers": headers})

    def log_answer(self, protocol: str, outcome: str, seconds: float, tokens: int) -> None:
        """The one line about an answer that somebody has followed here.

        ``outcome``: how the connection ended, as metrics count it; ``tokens``: the seq that it was
        sent last.
        """
        logger.info(
            "answer told",
            extra={
                "protocol": protocol,
                "outcome": outcome,
                "status": self.status,
                "tokens": tokens,
                "bytes": self.sent_bytes,
                "seconds": round(seconds, 3),
            },
        )

    # The course of a request

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Any) -> None:
        self.scope = scope
        self.base_send = send
        self._loop = asyncio.get_running_loop()
        self._push = scope.get("extensions", {}).get("unbroken.push")
        headers = decoded_headers(scope)
        self.request_id = request_id(headers)
        log_fields.begin(request_id=self.request_id)
        if ports.tracing is None or not self.traced:
            await self._respond(scope, receive, headers)
            return
        method, path = scope["method"], scope["path"]
        with ports.tracing.reader(
            f"{method} {route_of(scope)}",
            scope["headers"],
            method=method,
            path=path,
            request_id=self.request_id,
        ) as self.span:
            await self._respond(scope, receive, headers)

    async def _respond(
        self, scope: dict[str, Any], receive: Receive, headers: dict[str, str]
    ) -> None:
        self.page = Page(scope)
        if not await self._page_allowed() or not await self._method_allowed():
            return
        try:
            request = await read_request(scope, receive, headers, self.request_id, self.page)
        except ClientDisconnected:
            return
        except GatewayError as error:
            await self._tell(error)
            return
        handler = self._loop.create_task(self._run_handler(request))
        watcher = self._loop.create_task(_disconnected(receive))
        try:
            await asyncio.wait({handler, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if not handler.done() and not self.finished:
                await _to_its_end(self._client_left(handler))
                return
            # Servers say "disconnect" after a complete response too; the handler may go on.
            await asyncio.wait({handler})
            if handler.cancelled():
                await self._fail("the handler let a CancelledError out")
        except asyncio.CancelledError:
            await self._stopped(handler)
            raise
        finally:
            watcher.cancel()

    async def _page_allowed(self) -> bool:
        """Refuse a page that no tenant allows, and answer what browsers ask beforehand."""
        page = self.page
        if page.origin is None:
            return True
        try:
            if not page.is_own and not (
                self.open_to_pages and await cross_origin.is_allowed_by_any(page.origin)
            ):
                raise OriginNotAllowed
        except GatewayError as error:
            await self._tell(error)
            return False
        except psycopg.OperationalError as exc:
            await self._without_database(exc)
            return False
        self.readable = self.open_to_pages
        if self.scope["method"] == "OPTIONS" and cross_origin.is_preflight(self.scope):
            await self._start(204, cross_origin.preflight_headers(self.scope, self.methods))
            await self.finish()
            return False
        return True

    async def _method_allowed(self) -> bool:
        """Answer OPTIONS and wrong methods here."""
        method = self.scope["method"]
        if method in self.methods or (method == "HEAD" and "GET" in self.methods):
            return True
        allow = ", ".join([*self.methods, *(["HEAD"] if "GET" in self.methods else []), "OPTIONS"])
        headers = [(b"allow", allow.encode())]
        if method == "OPTIONS":
            await self._start(204, headers)
            await self.finish()
        else:
            await self.respond_json(405, MethodNotAllowed().as_openai(), headers)
        return False

    async def _run_handler(self, request: Request) -> None:
        """Run the handler and tell the client whatever goes wrong. Raises only CancelledError."""
        try:
            await self.handle(request)
            if not self.started:
                raise RuntimeError("the handler ended without an answer")
            await self.finish()
        except ResponseComplete:
            pass
        except GatewayError as error:
            await self._tell(error)
        except psycopg.OperationalError as exc:
            await self._without_database(exc)
        except Exception as exc:  # noqa: BLE001  the edge: the client gets an answer, the log the cause
            await self._fail("request failed", exc)

    async def _without_database(self, cause: psycopg.OperationalError) -> None:
        """What is not on its way yet cannot wait for the database."""
        logger.warning("no database for a request: %s", cause, extra=self._log_fields())
        await self._tell(JournalUnavailable("The database cannot be reached.", retry_after=1))

    async def _fail(self, event: str, cause: Exception | None = None) -> None:
        """Log what nobody foresaw, and tell the client where to find it."""
        logger.error(event, exc_info=cause, extra=self._log_fields())
        await self._tell(
            GatewayError(f"The gateway failed to answer; it is logged as {self.request_id}.")
        )

    async def _tell(self, error: GatewayError) -> None:
        """Answer with ``error``: as a status while that is possible, else in the stream."""
        if self.finished:
            return
        ERRORS.add(1, error.code)
        if isinstance(error, OriginNotAllowed):
            self.readable = False
        try:
            if self.started:
                await self.inband_error(error)
                await self.finish()
                return
            headers = []
            if error.retry_after is not None:
                headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
            await self.respond_json(error.http_status, error.as_openai(), headers)
        except Exception:  # the edge: what fails here has nowhere else to go; the server ends it
            logger.exception("an error could not be told", extra=self._log_fields())

    async def _client_left(self, handler: asyncio.Task[None]) -> None:
        self.finished = True
        logger.info("client left", extra=self._log_fields())
        await self._cancel(handler)
        hook = self._loop.create_task(self.on_disconnect())
        await asyncio.wait({hook}, timeout=self.cleanup_seconds)
        if not hook.done():
            hook.cancel()
            logger.error("on_disconnect took too long", extra=self._log_fields())
        elif not hook.cancelled() and (error := hook.exception()) is not None:
            logger.error("on_disconnect failed", exc_info=error, extra=self._log_fields())

    async def _stopped(self, handler: asyncio.Task[None]) -> None:
        """The server cancels us: it is shutting down. Let the handler end and tell the client."""
        await self._cancel(handler)
        try:
            async with asyncio.timeout(1.0):  # a client that does not read must not hold us
                await self._tell(Interrupted() if self.started else ShuttingDown())
        except TimeoutError:
            pass

    async def _cancel(self, handler: asyncio.Task[None]) -> None:
        handler.cancel()
        await asyncio.wait({handler}, timeout=self.cleanup_seconds)
        if not handler.done():
            logger.error("the handler did not end", extra=self._log_fields())

    def _log_fields(self) -> dict[str, str]:
        return {"method": self.scope["method"], "path": self.scope["path"]}


async def _to_its_end(steps: Coroutine[Any, Any, None]) -> None:
    """Await ``steps`` wholly; a cancellation is passed on only then."""
    task = asyncio.ensure_future(steps)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def sse_headers(session_id: str, request_id: str) -> list[Header]:
    """The head of an event stream that no proxy may hold back, cache or compress.

    No ``Content-Encoding: identity``: consumers bypass Django's GZipMiddleware, which is the only
    reader of it, and the value is not a legal one in a response.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache, no-transform"),
        (b"x-accel-buffering", b"no"),
        (b"x-session-id", session_id.encode()),
        (b"x-request-id", request_id.encode()),
        (b"x-server-time", now.encode()),
    ]
