"""A real HTTP server that receives events and answers as it is told."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(), strict_parsing=True))

    def is_signed_with(self, secret: str) -> bool:
        """As a receiver verifies it, by the Standard Webhooks specification."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        message_id, timestamp = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        signed = f"{message_id}.{timestamp}.".encode() + self.body
        wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        signatures = self.headers["webhook-signature"].split()
        return any(hmac.compare_digest(one, f"v1,{wanted}") for one in signatures)


@dataclass
class Receiver:
    """``answers``: what the next requests get, as (status, body, headers); then 200. ``hold``: keep
    the answers back until it is set."""

    received: list[Received] = field(default_factory=list)
    answers: list[tuple[int, str, dict[str, str]]] = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    hold: threading.Event | None = None
    decide: Callable[[Received], int] | None = None
    certificate: tuple[Any, Any] | None = None

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver._take(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Tests look at what was received."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.hold is not None:
            self.hold.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in"

    @property
    def ids(self) -> list[str]:
        """The ids of the CloudEvents, in the order in which they came."""
        return [one.json["id"] for one in self.received]

    def answer(self, status: int, body: str = "", **headers: str) -> None:
        self.answers.append((status, body, headers))

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["content-length"]))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        received = Received(handler.path, headers, body)
        self.received.append(received)
        status, text, more = self.answers.pop(0) if self.answers else (200, "", {})
        if self.decide is not None:
            status = self.decide(received)
        self.arrived.release()
        if self.hold is not None:
            self.hold.wait()
        encoded = text.encode()
        try:
            handler.send_response(status)
            for name, value in more.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.send_header("content-length", str(len(encoded)))
            handler.end_headers()
            handler.wfile.write(encoded)
        except OSError:  # who asked has not waited
            handler.close_connection = True
