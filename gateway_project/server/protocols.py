"""Daphne's HTTP and WebSocket protocols with the behaviour that long streams need.

Changed against Daphne 4.2.3: backpressure; an application that fails or ends in the middle of a
response gets its connection aborted; bodies are capped while they arrive; errors are JSON; nobody
can keep a finished connection open by not reading it, nor send a request for ever; ``Daphne-Root-Path`` is not believed.
"""

from __future__ import annotations

import io
import uuid
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
from autobahn.twisted.websocket import ConnectionDeny
from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from twisted.internet.protocol import connectionDone
from twisted.protocols.basic import LineReceiver
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.http_headers import Headers

from gateway_project.server.transport import WriteGate
from streaming.errors import GatewayError, InvalidRequest, RequestTooLarge

if TYPE_CHECKING:
    from gateway_project.server.server import GatewayServer

# Twisted has phrases for the statuses of its time; of 429 it would say "Unknown Status".
for _status in HTTPStatus:
    http.RESPONSES.setdefault(_status.value, _status.phrase.encode())

# How long a refused client may go on sending its body before the connection is closed. Closing
# at once would reset the connection and take the answer with it.
LINGER_SECONDS = 5.0
# How long a client may take to read the rest of a response that ends its connection.
FLUSH_SECONDS = 30
# What only a proxy may say about the client.
FORWARDED_HEADERS = (
    b"forwarded",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-proto",
    b"x-real-ip",
)


class GatewayChannel(http.HTTPChannel):
    """One HTTP/1.1 connection. (HTTP/2 and TLS belong to the proxy in front.)"""

    abortTimeout = FLUSH_SECONDS
    factory: GatewayHTTPFactory
    transport: Any
    _receiving = False

    def connectionMade(self) -> None:
        super().connectionMade()
        self.factory.server.channels.add(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.factory.server.channels.discard(self)
        super().connectionLost(reason)

    def dataReceived(self, data: bytes) -> None:
        # Twisted restarts the clock with every byte; here a request has one deadline as a whole.
        if not self._receiving:
            self._receiving = True
            self.resetTimeout()
        LineReceiver.dataReceived(self, data)

    def allHeadersReceived(self) -> None:
        request = self.requests[-1]
        if self.length is not None and self.length > self.factory.server.max_body_bytes:
            # No "100 Continue" for a body that is not wanted.
            request.requestHeaders.removeHeader(b"expect")
            request.refuse_body()
        super().allHeadersReceived()

    def requestDone(self, request: WebRequest) -> None:
        self._receiving = False
        if self.factory.server.stopping:
            self.persistent = False
        super().requestDone(request)

    def loseConnection(self) -> None:
        """Close once everything is sent, and abort when the peer does not read it."""
        if self._abortingCall is None:
            self._abortingCall = self.callLater(self.abortTimeout, self.forceAbortClient)
        super().loseConnection()

    def answer(self, status: int, error: GatewayError) -> None:
        """Write a whole error response past the request machinery, announcing the close."""
        body = orjson.dumps(error.as_openai())
        head = (
            f"HTTP/1.1 {status} {http.RESPONSES[status].decode()}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"X-Request-Id: {new_request_id()}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)

    def lineLengthExceeded(self, line: bytes) -> None:
        self._respondToBadRequestAndDisconnect()

    def _respondToBadRequestAndDisconnect(self) -> None:
        self.answer(400, InvalidRequest("The request is not valid HTTP."))
        self.loseConnection()


class GatewayRequest(WebRequest):
    """One request and its response."""

    requestHeaders: Headers

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gate = WriteGate()
        self.is_forwarded = False
        """Whether it says that it comes from somebody else than its peer."""
        self._refused = False
        self._body_bytes = 0
        # Twisted would parse form bodies into memory; the application does its own parsing.
        self._parsePOSTFormSubmission = False

    # Receiving

    def refuse_body(self) -> None:
        """Answer 413 now; what still arrives of the body is thrown away."""
        self._refused = True
        self.channel.answer(413, RequestTooLarge())
        self.channel.persistent = False
        self.channel.callLater(LINGER_SECONDS, self.loseConnection)

    def gotLength(self, length: int | None) -> None:
        if self._refused:
            self.content = io.BytesIO()
        else:
            super().gotLength(length)

    def handleContentChunk(self, data: bytes) -> None:
        if self._refused:
            return
        self._body_bytes += len(data)
        if self._body_bytes > self.server.max_body_bytes:
            self.refuse_body()
        else:
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        if self._refused:
            self.loseConnection()
        else:
            super().requestReceived(command, path, version)

    def process(self) -> Any:
        # Whoever can reach the port could otherwise choose the root path.
        self.requestHeaders.removeHeader(b"daphne-root-path")
        self.is_forwarded = any(map(self.requestHeaders.hasHeader, FORWARDED_HEADERS))
        if not self.server.trusts(self.client.host):
            for name in FORWARDED_HEADERS:
                self.requestHeaders.removeHeader(name)
        channel = self.channel
        result = super().process()
        if self.transport is None:  # handed over to a WebSocket
            self.server.channels.discard(channel)
        elif self.content is not None and getattr(self, "application_queue", None) is not None:
            # The application has been given both, and a stream is long.
            self.content.close()
            self.requestHeaders = Headers()
        return result

    # Sending

    def open_gate(self) -> None:
        self.registerProducer(self.gate, True)

    def handle_reply(self, message: dict[str, Any]) -> None:
        """Daphne's, with a short way for all but the first and the last piece of a stream."""
        if self.startedWriting and self.chunked and message.get("more_body"):
            data = message.get("body")
            if data and not (self.finished or self._disconnected):
                self._write_chunk(data)
        else:
            super().handle_reply(message)

    def push(self, data: bytes) -> bool:
        """Send a piece of a stream that has begun, without a message and without waiting.

        False, and nothing is sent, where no more is taken for now, or any more.
        """
        if (
            not (self.startedWriting and self.chunked and self.gate.is_open)
            or self.finished
            or self._disconnected
        ):
            return False
        self._write_chunk(data)
        return True

    def _write_chunk(self, data: bytes) -> None:
        self.sentLength += len(data)
        self.channel.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def finish(self) -> None:
        if self.producer is not None:
            self.unregisterProducer()
        self.gate.stopProducing()  # nobody would open it any more
        super().finish()

    def connectionLost(self, reason: Any) -> None:
        self.gate.stopProducing()
        self.producer = None
        super().connectionLost(reason)

    def abandon(self, error: BaseException | None) -> None:
        """The application is over, its response is not: 500 if that is still possible, else abort.

        A clean end would make a truncated answer look complete.
        """
        if self.finished or self.channel is None:
            return
        if self.startedWriting:
            self.channel.transport.abortConnection()
        else:
            self._response_started = False
            for name, _ in list(self.responseHeaders.getAllRawHeaders()):
                self.responseHeaders.removeHeader(name)
            status = 503 if self.server.stopping else 500
            self.basic_error(status, b"", "The gateway failed to answer this request.")

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        error = InvalidRequest(body) if status < 500 else GatewayError(body)
        content = orjson.dumps(error.as_openai())
        headers = [
            (b"Content-Type", b"application/json"),
            (b"Content-Length", b"%d" % len(content)),
            (b"X-Request-Id", new_request_id().encode()),
        ]
        self.handle_reply({"type": "http.response.start", "status": status, "headers": headers})
        self.handle_reply({"type": "http.response.body", "body": content})

    def check_timeouts(self) -> None:
        """HTTP has no timeout here: it would end a stream as if it were complete."""


class GatewayHTTPFactory(HTTPFactory):
    protocol = GatewayChannel
    server: GatewayServer

    def buildProtocol(self, addr: Any) -> GatewayChannel:
        channel = super().buildProtocol(addr)
        channel.requestFactory = GatewayRequest
        channel.timeOut = self.server.request_seconds
        return channel


class GatewayWebSocket(WebSocketProtocol):
    """One WebSocket connection."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = WriteGate()

    def serverSend(self, content: Any, binary: bool = False) -> None:
        # Once one side has begun to close it, nobody takes anything; the application hears of it soon.
        if self.state in (self.STATE_CONNECTING, self.STATE_OPEN):
            super().serverSend(content, binary)

    def push(self, text: bytes) -> bool:
        """Send a text message without waiting; False, and nothing is sent, where no more is taken
        for now, or any more."""
        if self.state != self.STATE_OPEN or not self.gate.is_open:
            return False
        self.sendMessage(text)
        return True

    def open_gate(self) -> None:
        # Until now the HTTP channel was the producer; its pauses would not reach us.
        self.transport.unregisterProducer()
        self.transport.registerProducer(self.gate, True)

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        self.gate.stopProducing()
        if hasattr(self, "server"):  # not set when the handshake was never completed
            super().onClose(wasClean, code, reason)

    def handle_reply(self, message: dict[str, Any]) -> None:
        if message["type"] == "websocket.close" and self.state == self.STATE_OPEN:
            self.close(message.get("code") or 1000, message.get("reason") or "")
        else:
            super().handle_reply(message)

    def close(self, code: int, reason: str = "") -> None:
        """Start the closing handshake.

        Past ``sendClose``, which Daphne uses: it refuses the codes 1001 to 2999, so 1012, and
        Daphne forgets the reason. A close frame holds 123 bytes of it.
        """
        text = reason.encode()[:123].decode(errors="ignore").encode()
        self.sendCloseFrame(code=code, reasonUtf8=text)

    def abandon(self, error: BaseException | None) -> None:
        """The application is over, the socket is not: refuse it, or close it with the reason."""
        stopping = self.server.stopping
        if hasattr(self, "handshake_deferred"):
            handshake = self.handshake_deferred
            del self.handshake_deferred  # Daphne tells by its absence that it was answered
            handshake.errback(ConnectionDeny(503 if stopping else 500, "The gateway failed."))
        elif self.state == self.STATE_OPEN:
            # 1012 is "service restart": clients come back and resume.
            self.close(1012 if stopping else 1011)


class GatewayWebSocketFactory(WebSocketFactory):
    protocol = GatewayWebSocket


def new_request_id() -> str:
    return uuid.uuid4().hex
