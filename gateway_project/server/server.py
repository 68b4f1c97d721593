"""``GatewayServer``: Daphne, made fit for streams that last and for processes that end politely.

Against Daphne 4.2.3: an application's end is handled when it happens, whatever it ended with (its
polling reaper stopped for good at the first exception after a response had started); ``send()``
waits for slow peers; a stopping process lets its streams finish and its applications clean up.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import daphne.server  # installs Twisted's asyncio reactor: before any other import of Twisted
from twisted.internet import reactor as twisted_reactor
from twisted.logger import globalLogBeginner

from gateway_project.server.inbox import Inbox
from gateway_project.server.protocols import (
    GatewayChannel,
    GatewayHTTPFactory,
    GatewayWebSocketFactory,
)
from gateway_project.server.shares import Shares
from gateway_project.server.transport import ConnectionSocket, GatewayPort, GatewayTransport
from streaming.core import log_fields

logger = logging.getLogger(__name__)
reactor: Any = twisted_reactor

SOCKET_EXTENSION = "unbroken.socket"
PUSH_EXTENSION = "unbroken.push"
"""Sends a piece of a stream, or a text, at once and without a message; False where ``send`` is the way."""
FORWARDED_EXTENSION = "unbroken.forwarded"
"""Is there when the peer speaks for somebody else, whether or not we believe what it says of them."""
# Time for the readers to get the end of their streams once the runtime has none left.
SETTLE_SECONDS = 2.0
# Time for what is written to leave the process.
FLUSH_AT_EXIT_SECONDS = 2.0
# Nobody waits for a process whose supervisor is gone.
ORPHAN_GRACE_SECONDS = 5.0


class Runtime(Protocol):
    """What runs beside the applications: started before we listen, drained and stopped at the end."""

    async def drain(self, timeout: float) -> Any: ...

    async def stop(self) -> Any: ...


class GatewayServer(daphne.server.Server):
    """Serves ``application`` on ``listener`` until a signal comes."""

    def __init__(
        self,
        application: Callable[..., Awaitable[None]],
        listener: socket.socket,
        *,
        start_runtime: Callable[[], Awaitable[Runtime]] | None = None,
        shutdown_grace: float,
        max_body_bytes: int,
        trusted_proxies: Iterable[str] = (),
        request_seconds: float = 60.0,
        vanished_seconds: float = 20.0,
        shares: Shares | None = None,
    ) -> None:
        """``request_seconds``: what a client has for sending a whole request, or for being idle.

        ``vanished_seconds``: what its system has for acknowledging what we send again and again.
        ``shares``: of a listener that other processes accept from, too.
        """
        super().__init__(
            application,
            endpoints=["adopted"],  # unused: we listen ourselves
            request_buffer_size=64 * 1024,
            server_name="",
        )
        self.listener = listener
        self.shares = shares
        self.start_runtime = start_runtime
        self.shutdown_grace = shutdown_grace
        self.max_body_bytes = max_body_bytes
        self.request_seconds = request_seconds
        self.vanished_seconds = vanished_seconds
        self._trusted = [ipaddress.ip_network(proxy, strict=False) for proxy in trusted_proxies]
        self.trusts = functools.lru_cache(maxsize=1024)(self._trusts)
        self.stopping = False
        self.channels: set[GatewayChannel] = set()
        self.connections: dict[Any, dict[str, Any]] = {}
        self._loop = reactor._asyncioEventloop
        self._stop_requested = asyncio.Event()
        self._exit_code = 0
        self._parent = os.getppid()

    # Life

    def run(self) -> int:
        """Serve until stopped; returns the exit code."""
        globalLogBeginner.beginLoggingTo(
            [_forward_failures],  # type: ignore[list-item]
            redirectStandardIO=False,
            discardBuffer=True,
        )
        asyncio.set_event_loop(self._loop)
        self.http_factory = GatewayHTTPFactory(self)
        self.ws_factory = GatewayWebSocketFactory(self, server="")
        self.ws_factory.setProtocolOptions(
            autoPingTimeout=self.ping_timeout,
            allowNullOrigin=True,
            openHandshakeTimeout=self.websocket_handshake_timeout,
            maxMessagePayloadSize=self.websocket_max_message_size,
            maxFramePayloadSize=self.websocket_max_frame_size,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal, number)
        main = self._loop.create_task(self._main())
        main.add_done_callback(self._main_done)
        reactor.run(installSignalHandlers=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)  # a thread may still hold up the exit
        return self._exit_code

    async def _main(self) -> None:
        runtime = await self._start()
        if runtime is None and self._stop_requested.is_set():
            return
        if runtime is not None:
            settle_garbage_collector()
        port = GatewayPort._fromListeningDescriptor(
            reactor, self.listener.fileno(), self.listener.family, self.http_factory
        )
        port.shares = self.shares
        port.startListening()
        reactor.callLater(2, self.timeout_checker)
        sys.stdout.write(f"READY {self.listener.getsockname()[1]}\n")
        sys.stdout.flush()
        await self._stop_requested.wait()
        await self._shut_down(port, runtime)

    async def _start(self) -> Runtime | None:
        """Start the runtime, unless a signal comes first."""
        if self.start_runtime is None:
            return None
        starting = asyncio.ensure_future(self.start_runtime())
        signalled = asyncio.ensure_future(self._stop_requested.wait())
        await asyncio.wait({starting, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting}, timeout=self.application_close_timeout)
            return None
        return starting.result()

    async def _shut_down(self, port: GatewayPort, runtime: Runtime | None) -> None:
        grace = self.shutdown_grace
        if os.getppid() != self._parent:
            grace = min(grace, ORPHAN_GRACE_SECONDS)
        logger.info("stopping: %d connections, grace %.0f s", len(self.connections), grace)
        self.stopping = True
        if self.shares is not None:
            self.shares.leave()
        await port.stopListening().asFuture(self._loop)
        self.listener.close()
        for channel in list(self.channels):
            if not channel.requests:
                channel.loseConnection()
        if runtime is None:
            await self._applications_ended(grace)
        else:
            try:
                await runtime.drain(grace)
            except Exception:  # the rest of the shutdown must happen whatever the runtime does
                logger.exception("draining failed")
            await self._applications_ended(SETTLE_SECONDS)
        await self._cancel_applications()
        await self._flush()
        if runtime is not None:
            await runtime.stop()

    def _main_done(self, main: asyncio.Task[None]) -> None:
        if not main.cancelled() and (error := main.exception()) is not None:
            logger.critical("the server failed", exc_info=error)
            self._exit_code = 1
        reactor.stop()

    def _on_signal(self, number: int) -> None:
        if self._stop_requested.is_set():
            os._exit(128 + number)
        self._stop_requested.set()

    # Connections and their applications

    def _trusts(self, host: str) -> bool:
        """Whether the peer is one of our proxies, whose ``X-Forwarded-*`` headers count."""
        address = ipaddress.ip_address(host.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._trusted)

    def protocol_disconnected(self, protocol: Any) -> None:
        """The connection (or this response on it) is over; the application gets time to notice."""
        details = self.connections.get(protocol)
        if details is None or "disconnected" in details:
            return
        details["disconnected"] = time.time()
        task = details.get("application_instance")
        if task is None or task.done():
            del self.connections[protocol]
        else:
            details["killer"] = self._loop.call_later(
                self.application_close_timeout, self._kill, protocol, task
            )

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Inbox | None:
        """Start the application for ``protocol``; returns what it is told by."""
        details = self.connections.get(protocol)
        if details is None or "disconnected" in details:
            return None
        protocol.open_gate()
        transport = protocol.transport
        scope["asgi"] = {"version": "3.0", "spec_version": "2.3"}
        scope["extensions"] = {
            SOCKET_EXTENSION: ConnectionSocket(transport),
            PUSH_EXTENSION: protocol.push,
        }
        if getattr(protocol, "is_forwarded", False):
            scope["extensions"][FORWARDED_EXTENSION] = {}
        inbox = Inbox()
        send = functools.partial(self.handle_reply, protocol)
        # A request that came in a pipeline begins where the one before it ends, in its name.
        task = self._loop.create_task(
            _run(self.application, scope, inbox.get, send), context=log_fields.nobody()
        )
        details["application_instance"] = task
        task.add_done_callback(functools.partial(self._application_done, protocol))
        return inbox

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        """ASGI ``send``: returns once less than ``HIGH_WATER`` waits in our buffers.

        Messages to a connection that is gone are dropped; the application has been sent a
        ``disconnect`` by then.
        """
        details = self.connections.get(protocol)
        if details is None or "disconnected" in details:
            # Give way: an application that only ever writes must get to see its disconnect.
            await asyncio.sleep(0)
            return
        self.check_headers_type(message)
        protocol.handle_reply(message)
        if not protocol.gate.is_open:
            await protocol.gate.wait()

    def _application_done(self, protocol: Any, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("exception inside application", exc_info=error)
        details = self.connections.get(protocol)
        if details is None:
            return
        details.pop("application_instance", None)
        if "disconnected" in details:
            if (killer := details.pop("killer", None)) is not None:
                killer.cancel()
            del self.connections[protocol]
            return
        try:
            protocol.abandon(error)
        except Exception:  # one odd connection must not cost the others anything
            logger.exception("cannot end the connection of %r", protocol)
            protocol.transport.abortConnection()

    def _kill(self, protocol: Any, task: asyncio.Task[None]) -> None:
        if not task.done():
            logger.warning(
                "application for %r is still running %.0f s after its connection ended: cancelled",
                protocol,
                self.application_close_timeout,
            )
            task.cancel()

    def timeout_checker(self) -> None:
        """WebSocket pings and timeouts, vanished peers; survives whatever one connection does."""
        for protocol in list(self.connections):
            try:
                protocol.check_timeouts()
            except Exception:  # one odd connection must not cost the others their pings
                logger.exception("timeout check of %r failed", protocol)
        # HTTP connections (also those that are idle), and those that became WebSockets.
        for transport in {protocol.transport for protocol in [*self.channels, *self.connections]}:
            if isinstance(transport, GatewayTransport) and transport.has_vanished(
                self.vanished_seconds
            ):
                logger.info("a client has vanished: its connection is cut")
                transport.vanish()
        reactor.callLater(2, self.timeout_checker)

    # Shutdown

    def _applications(self) -> set[asyncio.Task[None]]:
        return {
            task
            for details in self.connections.values()
            if (task := details.get("application_instance")) is not None
        }

    async def _applications_ended(self, timeout: float) -> None:
        """Wait until no application runs any more, at most ``timeout`` seconds."""
        deadline = self._loop.time() + timeout
        while (tasks := self._applications()) and (left := deadline - self._loop.time()) > 0:
            await asyncio.wait(tasks, timeout=left)

    async def _cancel_applications(self) -> None:
        """Cancel what still runs and wait for *all* of it (Daphne waits for the first)."""
        tasks = self._applications()
        for task in tasks:
            task.cancel()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=self.application_close_timeout)
            logger.info("cancelled %d applications, %d did not end", len(tasks), len(pending))

    async def _flush(self) -> None:
        """Let the last events leave, then close what is left."""
        deadline = self._loop.time() + FLUSH_AT_EXIT_SECONDS
        for channel in list(self.channels):
            channel.loseConnection()
        while (self.channels or self.connections) and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _run(application: Any, scope: Any, receive: Any, send: Any) -> None:
    try:
        await application(scope, receive, send)
    except (KeyboardInterrupt, SystemExit) as exc:
        # asyncio would end the whole loop with it, without any shutdown.
        raise RuntimeError(f"an application raised {exc!r}") from exc


def _forward_failures(event: dict[str, Any]) -> None:
    """Twisted's own log: only what went wrong is worth a line."""
    failure = event.get("log_failure")
    if failure is not None:
        error = failure.value
        logger.error(
            "error inside Twisted: %s", error, exc_info=(type(error), error, error.__traceback__)
        )


def settle_garbage_collector() -> None:
    """What is loaded now stays for good: full collections need not walk it again and again.

    Unfrozen they stopped all streams for 150 to 200 ms every few seconds. What 200 sessions add
    still takes 80 ms, so they are rare; what dies in cycles dies young, in the lesser collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 200)
