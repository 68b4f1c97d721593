"""The one HTTP client towards engines, and the translation of what can go wrong on it."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, Protocol

import httpx
import orjson
from aiohttp import (
    AddrInfoType,
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    ServerDisconnectedError,
)
from httpx_aiohttp import AiohttpTransport
from yarl import URL

from streaming.conf import conf
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.engines.names import HostNames
from streaming.engines.sockets import (
    HAS_TCP_INFO,
    EngineConnection,
    SilenceGuard,
    Watch,
    error_facts,
    set_options,
)
from streaming.engines.spares import SpareConnector
from streaming.engines.wire import Reply, request_head

# What a client got wrong; every other 4xx is about the node (its key, its load, its routes).
CLIENT_STATUSES = frozenset({400, 413, 422})
BUSY_STATUSES = frozenset({429, 503})


class Stream(Protocol):
    """The reply to ``EngineClient.post``: its body by ``async for`` or ``pour``, as it comes in.

    ``connection``: where it comes from; None where that is not to be had.
    """

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def connection(self) -> EngineConnection | None: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        """See ``wire.Reply.pour``."""

    async def aclose(self) -> None:
        """Its end, which closes the connection under a reply that is not whole."""


class _Target(NamedTuple):
    """Where a URL leads: whose connections, and what the head of a request says."""

    origin: URL
    netloc: bytes
    path: str


class EngineClient:
    """Short requests, and streams that never time out by themselves: the stall timers decide.

    Streams go over ``wire``: a general client costs more than all that the gateway does besides,
    and of a node that dies under a hundred streams the last reader waits for a hundred requests.
    Without a connector they are handed to the transport.
    """

    def __init__(
        self, transport: httpx.AsyncBaseTransport, connector: SpareConnector | None = None
    ) -> None:
        self.names = HostNames(transport)
        self._connector = connector
        self._connect_timeout = conf().engine_connect_timeout
        # Before the first token the gateway waits for longer than between tokens, and decides first.
        self.longest_silence = conf().first_token_timeout + conf().engine_silence
        # A timer of the transport costs something with every read, so only where the guard is blind.
        self._read_timeout = None if HAS_TCP_INFO else self.longest_silence
        self.guard = SilenceGuard(conf().engine_silence)
        self._targets: dict[str, _Target] = {}
        self.short = httpx.AsyncClient(
            transport=self.names,
            timeout=httpx.Timeout(None, connect=self._connect_timeout),
            headers=_HEADERS,
            follow_redirects=False,
            trust_env=False,
        )

    async def post(
        self, url: str, content: bytes, headers: Mapping[str, str], watch: Watch
    ) -> Stream:
        """The open reply, once its head is there. The caller closes it, and ends ``watch``."""
        headers = {**_HEADERS, "content-type": "application/json", **headers}
        if self._connector is None:
            request = httpx.Request("POST", url, content=content, headers=headers)
            return _Carried(await self.names.handle_async_request(request))
        target = self._target(url)
        host, hostname = self.names.of(target.netloc)
        head = request_head(target.path, host, headers, len(content))
        connection = await self._connector.take(target.origin, self._connect_timeout, hostname)
        watch.limit = self.longest_silence
        self.guard.begin(watch, connection)
        return await _Wired.asked(
            self._connector, target.origin, connection, head + content, self._read_timeout
        )

    def _target(self, url: str) -> _Target:
        target = self._targets.get(url)
        if target is None:
            parsed = httpx.URL(url)
            path = parsed.raw_path.decode()
            target = self._targets[url] = _Target(URL(url).origin(), parsed.netloc, path)
        return target

    def use_tls(self, base_url: str, context: ssl.SSLContext | None) -> None:
        """Make connections to a node with ``context`` from now on; None: the system's."""
        if self._connector is not None:
            self._connector.use_tls(base_url, context)

    async def keep_spares(self, base_url: str, count: int) -> None:
        """Have ``count`` connections to a node ready for its next attempts."""
        if self._connector is not None:
            host = self.names.host(base_url)
            await self._connector.keep_spares(base_url, count, self._connect_timeout, host)

    def drop_spares(self, base_url: str) -> None:
        """Close what ``keep_spares`` has opened."""
        if self._connector is not None:
            self._connector.drop_spares(base_url)

    async def aclose(self) -> None:
        await self.short.aclose()


_HEADERS = {"accept-encoding": "identity"}


class _Wired(Reply):
    """See ``Stream``; its connection goes back to ``connector`` when it may be used again."""

    def __init__(
        self,
        connector: SpareConnector,
        origin: URL,
        connection: EngineConnection,
        patience: float | None,
    ) -> None:
        super().__init__(connection, patience)
        self._connector = connector
        self._origin = origin
        self._is_closed = False

    @classmethod
    async def asked(
        cls,
        connector: SpareConnector,
        origin: URL,
        connection: EngineConnection,
        request: bytes,
        patience: float | None,
    ) -> _Wired:
        """The reply to ``request``, once its head is there."""
        reply = cls(connector, origin, connection, patience)
        try:
            if connection.transport is None:
                raise ServerDisconnectedError
            connection.transport.write(request)
            await reply.head()
        except BaseException:
            await reply.aclose()
            raise
        return reply

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        connection = self.connection
        connection.reply = None
        if not connection.has_sent_all:
            connection.abort()  # what the engine has not got whole it shall not begin
        elif self.keeps_connection:
            self._connector.leave(self._origin, connection)
        else:
            connection.close()


class _Carried:
    """See ``Stream``; a reply of the transport."""

    connection = None

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._body = aiter(response.stream)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        async for data in self._body:
            if not take(data):
                return True
        return False

    async def aclose(self) -> None:
        await self._response.aclose()


def engine_client() -> EngineClient:
    """The client over real sockets. Needs a running loop."""
    silence = conf().engine_silence

    def opened(address: AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        sock = socket.socket(family, kind, protocol)
        set_options(sock, silence)
        return sock

    # Any number of streams per node. uvicorn closes a used connection after 5 s without a request.
    connector = SpareConnector(
        limit=0, keepalive_timeout=4, enable_cleanup_closed=True, socket_factory=opened
    )
    session = ClientSession(
        connector=connector,
        timeout=ClientTimeout(total=None),
        read_bufsize=64 * 1024,
        auto_decompress=False,
        cookie_jar=DummyCookieJar(),
    )
    return EngineClient(AiohttpTransport(client=session), connector)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn transport errors into ``AttemptFailed``."""
    try:
        yield
    except TRANSPORT_ERRORS as exc:
        raise transport_failure(exc) from exc


TRANSPORT_ERRORS = (httpx.HTTPError, httpx.StreamError, ClientError, OSError)


def transport_failure(exc: Exception) -> AttemptFailed:
    """What one of them means."""
    return AttemptFailed(_transport_cause(exc), _words(exc), evidence=error_facts(exc))


_CAUSES: tuple[tuple[Cause, tuple[type[BaseException], ...]], ...] = (
    (Cause.REFUSED, (ClientConnectorError, ConnectionTimeoutError)),
    (Cause.RESET, (ConnectionResetError, BrokenPipeError)),
    (Cause.CLOSED, (ServerDisconnectedError, ClientPayloadError, httpx.RemoteProtocolError)),
    (Cause.REFUSED, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)),
    (Cause.STALLED, (httpx.TimeoutException, TimeoutError)),
)


def _transport_cause(exc: BaseException) -> Cause:
    """What broke the connection.

    The transport maps every broken connection to ``httpx.ConnectTimeout``, also one that broke
    under a running request; the errors behind the error tell them apart.
    """
    chain: list[BaseException] = []
    link: BaseException | None = exc
    while link is not None:
        chain.append(link)
        link = link.__cause__
    # Of a reset inside a body, aiohttp keeps the words only.
    if any("ConnectionResetError" in str(e) for e in chain if isinstance(e, ClientPayloadError)):
        return Cause.RESET
    for cause, kinds in _CAUSES:
        if any(isinstance(error, kinds) for error in chain):
            return cause
    return Cause.RESET


@contextmanager
def expected_shape() -> Iterator[None]:
    """Around code that takes an engine's JSON apart: another shape fails the attempt."""
    try:
        yield
    except OTHER_SHAPES as exc:
        raise other_shape(exc) from exc


OTHER_SHAPES = (KeyError, IndexError, TypeError, AttributeError, ValueError)


def other_shape(exc: Exception) -> AttemptFailed:
    """What one of them means there."""
    failure = AttemptFailed(Cause.MALFORMED, f"not of the expected shape: {exc!r}")
    failure.__cause__ = exc
    return failure


def token_ids(value: Any) -> list[int]:
    """A list of token ids. Raises ``ValueError`` for anything else."""
    if type(value) is list:
        for i in value:  # comes with every token: a generator would cost as much as its JSON
            if type(i) is not int or not 0 <= i < 2**31:
                break
        else:
            return value
    raise ValueError(f"not token ids: {value!r:.80}")


LONGEST_NAME = 500


def model_name(value: Any) -> str:
    """The id of a model. Raises ``ValueError`` for what is none, or could not be stored."""
    if isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable():
        return value
    raise ValueError(f"not a model's name: {value!r:.80}")


def positive(value: Any) -> int | None:
    """A number of tokens or slots; None for none, and for what is no such number."""
    return value if type(value) is int and 0 < value < 2**31 else None


def text_of(value: Any) -> str:
    """A text; null counts as none. Raises ``ValueError`` for anything else."""
    if value is None or isinstance(value, str):
        return value or ""
    raise ValueError(f"not a text: {value!r:.80}")


def _words(exc: Exception) -> str:
    # The transport's own names mislead: ConnectTimeout for whatever happened to a connection.
    named = exc.__cause__ if isinstance(exc.__cause__, ClientError) else exc
    return f"{type(named).__name__}: {exc}"


def parsed(data: bytes) -> Any:
    """JSON from an engine. Raises ``AttemptFailed``: half an event, a lone surrogate, …"""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise AttemptFailed(Cause.MALFORMED, f"{exc}: {data[:80]!r}") from exc


def raise_for_status(status: int, body: bytes, headers: Mapping[str, str]) -> NoReturn:
    """Raise what an HTTP status other than 200 means."""
    message = error_message(body) or f"HTTP {status}"
    if status in CLIENT_STATUSES:
        raise RejectedByEngine(status, message)
    raise AttemptFailed(
        Cause.BUSY if status in BUSY_STATUSES else Cause.BAD_STATUS,
        f"HTTP {status}: {message}",
        retry_after=_seconds(headers.get("retry-after", "")),
    )


def _seconds(retry_after: str) -> float | None:
    """The seconds of a ``Retry-After``; a date is not worth trusting two clocks for."""
    return float(retry_after) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", retry_after) else None


def raise_for_error(error: Any) -> None:
    """Raise what an error object inside a stream means: its 4xx are the client's."""
    fields = error if isinstance(error, dict) else {"message": str(error)}
    message = str(fields.get("message", error))
    code = fields.get("code")
    if isinstance(code, int) and code in CLIENT_STATUSES:
        raise RejectedByEngine(code, message, in_stream=True)
    raise AttemptFailed(Cause.ENGINE_ERROR, message)


def error_message(body: bytes) -> str:
    """The message of an error body in any of the shapes that engines use."""
    try:
        value = orjson.loads(body)  # refuses lone surrogates, which nobody could pass on
    except ValueError:
        return body[:200].decode(errors="replace").strip()
    error = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(error, dict):
        return str(error.get("message") or error.get("detail") or error)
    return str(error)
