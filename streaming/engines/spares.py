"""Spare connections: made before they are needed, so that a seam waits for none to be made.

Making a connection is most of our own work for asking an engine, more with TLS, and a node that dies
takes all its streams to the other nodes at once.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections import deque
from typing import Any

from aiohttp import (
    ClientError,
    ClientRequest,
    ClientTimeout,
    ConnectionTimeoutError,
    TCPConnector,
)
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from streaming.engines.sockets import EngineConnection

# An unused connection may be forgotten by whatever lies between us and the node.
LONGEST_REST = 20.0
# uvicorn closes a used connection after 5 s without a request.
USED_REST = 4.0


def _connection(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return EngineConnection(loop)


class SpareConnector(TCPConnector):
    """Hands out a spare connection to the same address instead of making one.

    Kept apart from the pool of used ones: servers close those after a few seconds without a
    request (uvicorn after 5), and a connection that was never used not at all.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = functools.partial(_connection, self._loop)
        self._tls: dict[URL, ssl.SSLContext | None] = {}
        self._spares: dict[URL, deque[tuple[float, ResponseHandler]]] = {}
        self._used: dict[URL, deque[tuple[float, EngineConnection]]] = {}

    def use_tls(self, base_url: str, context: ssl.SSLContext | None) -> None:
        """Make connections to this address with ``context`` from now on; None: the system's."""
        origin = URL(base_url).origin()
        if self._tls.get(origin) is not context:
            self.drop_spares(base_url)
            self._tls[origin] = context

    def _get_ssl_context(self, req: ClientRequest) -> ssl.SSLContext | None:
        return self._tls.get(req.url.origin()) or super()._get_ssl_context(req)

    async def keep_spares(
        self, base_url: str, count: int, timeout: float, host: str | None = None
    ) -> None:
        """Have ``count`` connections ready. Does without those that cannot be made.

        ``host``: whose certificate is expected there, if not that of the address.
        """
        origin = URL(base_url).origin()
        spares = self._spares.setdefault(origin, deque())
        loop = asyncio.get_running_loop()
        while spares and (len(spares) > count or loop.time() - spares[0][0] > LONGEST_REST):
            spares.popleft()[1].close()
        fresh = [spare for spare in spares if spare[1].is_connected()]
        spares.clear()
        spares.extend(fresh)
        request = ClientRequest("GET", origin, loop=loop, server_hostname=host)
        limits = ClientTimeout(connect=timeout, sock_connect=timeout)
        try:
            while len(spares) < count:
                protocol = await super()._create_connection(request, [], limits)
                if self._spares.get(origin) is not spares:
                    protocol.close()  # dropped meanwhile
                    return
                spares.append((loop.time(), protocol))
        except (ClientError, OSError, TimeoutError):
            pass  # whether the node is well is for its probe to say
        if not spares and self._spares.get(origin) is spares:
            del self._spares[origin]

    async def _create_connection(
        self, req: ClientRequest, traces: list[Any], timeout: ClientTimeout
    ) -> ResponseHandler:
        spares = self._spares.get(req.url.origin())
        while spares:
            _, protocol = spares.pop()  # the freshest
            if protocol.is_connected():
                return protocol
        return await super()._create_connection(req, traces, timeout)

    def drop_spares(self, base_url: str) -> None:
        """The node is gone, or not well."""
        origin = URL(base_url).origin()
        for _, protocol in (*self._spares.pop(origin, ()), *self._used.pop(origin, ())):
            protocol.close()

    async def take(self, origin: URL, timeout: float, host: str | None = None) -> EngineConnection:
        """A connection for one stream: one that another has left, a spare, or a new one.

        ``host``: as for ``keep_spares``. Raises ``ClientError`` or ``OSError``.
        """
        loop = asyncio.get_running_loop()
        used = self._used.get(origin)
        while used:
            since, left = used.pop()
            if loop.time() - since < USED_REST and left.is_usable:
                return left
            left.close()
        spares = self._spares.get(origin)
        while spares:
            _, spare = spares.pop()  # the freshest
            if isinstance(spare, EngineConnection) and spare.is_usable:
                return spare
            spare.close()
        request = ClientRequest("GET", origin, loop=loop, server_hostname=host)
        limits = ClientTimeout(sock_connect=timeout)
        try:
            made = await super()._create_connection(request, [], limits)
        except TimeoutError as exc:
            raise ConnectionTimeoutError(f"Connection timeout to host {origin}") from exc
        assert isinstance(made, EngineConnection)
        return made

    def leave(self, origin: URL, connection: EngineConnection) -> None:
        """Have a connection whose reply is whole ready for the next stream."""
        used = self._used.setdefault(origin, deque())
        now = asyncio.get_running_loop().time()
        while used and now - used[0][0] > USED_REST:
            used.popleft()[1].close()
        used.append((now, connection))

    def close(self, **options: Any) -> Any:
        for origin in {*self._spares, *self._used}:
            self.drop_spares(str(origin))
        return super().close(**options)
