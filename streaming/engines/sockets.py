"""The sockets towards engines: options that find a dead peer, and what the kernel says of one.

A silent stream looks the same whether its engine thinks, is frozen, or is behind a cable that was
pulled. The kernel knows more: what it sent and nobody acknowledged, and since when nothing came.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
from errno import errorcode
from typing import Any, Protocol

from aiohttp.client_proto import ResponseHandler

# A connection that has been quiet for this long is asked whether the other machine is still there,
# and again at the same pace. Streams at work are never quiet for so long, so it costs nothing but
# two small packets where something may be wrong; and by the time a stream counts as stalled, an
# unanswered probe tells a lost machine from a frozen process, whose kernel answers.
KEEPALIVE_IDLE = 2
KEEPALIVE_INTERVAL = 2

# How often the silence of all connections is looked at, as a share of what is tolerated.
LOOKS = 10

_STATES = (
    *("", "established", "syn_sent", "syn_recv", "fin_wait1", "fin_wait2", "time_wait", "close"),
    *("close_wait", "last_ack", "listen", "closing"),
)
HAS_TCP_INFO = sys.platform == "linux"
_INFO = struct.Struct("=8B24I")


def set_options(sock: Any, silence: float) -> None:
    """Have the kernel give up a peer that says nothing at all for ``silence`` seconds.

    Where the system has no such option it is left out: the timers above the socket are there too.
    """
    tries = max(1, round((silence - KEEPALIVE_IDLE) / KEEPALIVE_INTERVAL))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
        ("TCP_KEEPCNT", tries),
        # Of what we have sent; on Linux it also stands in for the number of keep-alive probes.
        ("TCP_USER_TIMEOUT", round(silence * 1000)),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def tcp_facts(sock: Any) -> dict[str, Any]:
    """What the kernel says of a connection; nothing once it is closed, or elsewhere than on Linux.

    ``state``: as the kernel calls it, in lower case; ``unacked`` and ``retransmits``: segments that
    we sent and the peer has not acknowledged, and how often in a row they were sent again;
    ``probes``: unanswered keep-alive probes; ``last_data_recv`` and ``last_data_sent``: how long
    ago, in ms; ``rtt_us``.
    """
    return _parsed(_tcp_info(sock))


def _tcp_info(sock: Any) -> bytes:
    """The kernel's words; empty where it has none."""
    if not HAS_TCP_INFO or sock is None:
        return b""
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except OSError:
        return b""


def _parsed(raw: bytes) -> dict[str, Any]:
    if len(raw) < _INFO.size:
        return {}
    fields = _INFO.unpack(raw)
    words = fields[8:]
    return {
        "state": _STATES[fields[0]] if fields[0] < len(_STATES) else str(fields[0]),
        "unacked": words[4],
        "retransmits": fields[2],
        "probes": fields[3],
        "last_data_recv": words[11],
        "last_data_sent": words[9],
        "rtt_us": words[15],
    }


def error_facts(error: BaseException | None) -> dict[str, Any]:
    """What went wrong, from the error or from what caused it: ``errno`` by name, or ``tls``."""
    while error is not None:
        if isinstance(error, ssl.SSLError):  # its number is none of the system's
            if reason := getattr(error, "reason", None):
                return {"tls": reason}
        elif isinstance(error, OSError) and (name := errorcode.get(error.errno or 0)):
            return {"errno": name}
        error = error.__cause__
    return {}


class Receiver(Protocol):
    """Who gets what comes on a connection, in place of the client that has made it."""

    def feed(self, data: bytes) -> None: ...

    def lost(self, error: BaseException | None) -> None: ...


class EngineConnection(ResponseHandler):
    """One connection to an engine; remembers how it ended while somebody watches it."""

    watch: Watch | None = None
    reply: Receiver | None = None
    socket: Any = None
    """Its own, since the transport is forgotten before the end is told."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.socket = transport.get_extra_info("socket")

    @property
    def is_usable(self) -> bool:
        """Whether a request may go out on it: nothing came unasked, and the peer has not closed it.

        The kernel is asked too: what it knows our loop may not have got round to, and a request that
        meets the end of its connection counts as a failure of the node.
        """
        state: str = tcp_facts(self.socket).get("state", "established")
        return self.is_connected() and not self.should_close and state == "established"

    @property
    def has_sent_all(self) -> bool:
        """Whether it is open, and no part of a request waits: an engine may refuse one half read."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        return not transport.get_write_buffer_size()

    def data_received(self, data: bytes) -> None:
        if self.reply is not None:
            self.reply.feed(data)
        else:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.watch is not None:
            self.watch.note_end(exc)
        if self.reply is not None:
            self.reply.lost(exc)
        super().connection_lost(exc)


class Watch:
    """The connection of one attempt, as it is and as it ended. Without one it knows nothing."""

    __slots__ = ("_connection", "_error", "_raw", "limit", "was_cut")

    def __init__(self) -> None:
        self._connection: EngineConnection | None = None
        # Taken at the end and read when somebody asks: a node that dies ends hundreds at once.
        self._raw: bytes | None = None
        self._error: dict[str, Any] = {}
        self.limit = 0.0
        """How long the peer may send no byte, in seconds."""
        self.was_cut = False

    def __repr__(self) -> str:
        return f"<Watch {self.facts()}>"

    def facts(self) -> dict[str, Any]:
        """See ``tcp_facts``; how it ended, once it has."""
        if self._raw is None:
            return tcp_facts(self._socket())
        return {**_parsed(self._raw), **self._error}

    def note_end(self, error: BaseException | None) -> None:
        """The connection is about to be closed, by whomever."""
        if self._raw is None:
            self._raw = _tcp_info(self._socket())
            self._error = error_facts(error)

    def begin(self, connection: EngineConnection) -> None:
        self._connection = connection
        connection.watch = self

    def end(self, error: BaseException | None) -> None:
        """Left with an error, the facts stay what they were then."""
        if error is not None:
            self.note_end(error)
        if self._connection is not None:
            self._connection.watch = None
            self._connection = None

    def check(self) -> None:
        """Cut the connection if its peer has been silent for too long.

        A request that was sent a moment ago is waited for, however old the connection is.
        """
        facts = tcp_facts(self._socket())
        if facts and min(facts["last_data_recv"], facts["last_data_sent"]) > self.limit * 1000:
            transport = None if self._connection is None else self._connection.transport
            # Where we do not read, since the journal takes no more, the silence is ours.
            if transport is not None and transport.is_reading():
                self.was_cut = True
                transport.abort()

    def _socket(self) -> Any:
        return None if self._connection is None else self._connection.socket


class SilenceGuard:
    """Cuts connections that bring nothing for too long: the last of the timers, and the dullest.

    The kernel keeps the time, so that it costs nothing per token.
    """

    def __init__(self, silence: float) -> None:
        self._interval = silence / LOOKS
        self._watches: set[Watch] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<SilenceGuard of {len(self._watches)} connections>"

    def begin(self, watch: Watch, connection: EngineConnection) -> None:
        """From now on ``watch`` is of ``connection``, which is looked at too."""
        watch.begin(connection)
        self._watches.add(watch)
        if self._timer is None:
            self._wait()

    def end(self, watch: Watch, error: BaseException | None) -> None:
        """See ``Watch.end``. Does nothing for one that was never begun."""
        watch.end(error)
        self._watches.discard(watch)

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)

    def _look(self) -> None:
        self._timer = None
        for watch in self._watches:
            watch.check()
        if self._watches:
            self._wait()
