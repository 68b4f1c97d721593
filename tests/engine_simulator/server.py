"""The simulator as a server: routing, the listening socket, the control endpoints."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl

from . import llamacpp, vllm
from .engine import Engine, EngineOptions, Refused, Route
from .faults import parse_fault
from .wire import Connection, Request

_BACKLOG = 1024


class Simulator:
    """One pretend engine listening on a port, and on a Unix socket for control if asked."""

    def __init__(self, options: EngineOptions) -> None:
        self.engine = Engine(options)
        dialect = vllm if self.engine.is_vllm else llamacpp
        self._not_found = dialect.NOT_FOUND
        self._routes: dict[tuple[str, str], Route] = {
            **dialect.routes(options),
            ("GET", "/_sim/stats"): self._get_stats,
            ("POST", "/_sim/fault"): self._post_fault,
            ("DELETE", "/_sim/fault"): self._delete_fault,
        }
        self._connections: set[Connection] = set()
        self._listener: asyncio.Server | None = None
        self._address = ("", 0)

    def __repr__(self) -> str:
        return f"<Simulator {self._address} [{'open' if self._listener else 'refusing'}]>"

    async def listen(self, host: str, port: int) -> int:
        """Begin to accept connections; return the port."""
        sock = socket.create_server((host, port), backlog=_BACKLOG)
        self._address = sock.getsockname()[:2]
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._connection, sock=sock, backlog=_BACKLOG, ssl=self._tls()
        )
        return self._address[1]

    def _tls(self) -> ssl.SSLContext | None:
        options = self.engine.options
        if not options.tls_cert:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(options.tls_cert, options.tls_key)
        if options.client_ca:
            context.load_verify_locations(options.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    async def listen_for_control(self, path: str) -> None:
        """Accept control connections that `refuse` does not close."""
        await asyncio.get_running_loop().create_unix_server(self._connection, path)

    def _connection(self) -> Connection:
        return Connection(self._handle, self._connections)

    async def _handle(self, request: Request, connection: Connection) -> None:
        route = self._routes.get((request.method, request.path))
        key = self.engine.options.api_key
        is_open = request.path == "/health" or connection.is_local
        if key and not is_open and request.headers.get("authorization") != f"Bearer {key}":
            connection.reply_json({"error": "Unauthorized"}, 401)
            return
        if route is None:
            is_known = any(path == request.path for _, path in self._routes)
            wrong_method = is_known and self.engine.is_vllm
            connection.reply_json(self._not_found, 405 if wrong_method else 404)
            return
        try:
            await route(self.engine, request, connection)
        except Refused as refused:
            connection.reply_json(refused.document, refused.status, refused.headers)
        if self._listener is None and not connection.is_local:
            connection.close()  # it was in use when the node began to refuse

    def terminate(self) -> bool:
        """Take a SIGTERM; say whether the process is to end."""
        if not self.engine.faults.take("sigterm_silent"):
            return True
        self._refuse()
        self.engine.can_generate.clear()
        return False

    def _refuse(self) -> None:
        """Accept no connections any more, and end those without a request."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for other in [c for c in self._connections if c.is_idle and not c.is_local]:
            other.close()

    # Control.

    async def _get_stats(self, engine: Engine, request: Request, connection: Connection) -> None:
        connection.reply_json(engine.stats())

    async def _post_fault(self, engine: Engine, request: Request, connection: Connection) -> None:
        try:
            fault = parse_fault(json.loads(request.body))
        except (ValueError, TypeError) as error:
            raise Refused(400, {"error": {"message": str(error), "code": 400}}) from error
        if fault.kind == "reset_connections":
            for other in [c for c in self._connections if not c.is_local]:
                other.reset()
        else:
            engine.faults.add(fault)
        if fault.kind == "slow_engine":
            engine.slowness = float(fault.arg)
        if fault.kind == "refuse":
            self._refuse()
        if fault.kind == "freeze_engine":
            engine.can_generate.clear()
        connection.reply_json({"ordered": fault.kind})

    async def _delete_fault(self, engine: Engine, request: Request, connection: Connection) -> None:
        if self._listener is None:
            await self.listen(*self._address)
        engine.faults.clear()
        engine.slowness = 0.0
        engine.can_generate.set()
        connection.reply_json({"cleared": True})
