"""The TCP side of a connection: small buffers, backpressure, and what the peer has taken.

How bytes leave: ``send()`` -> user-space buffer (``HIGH_WATER``) -> kernel (``NOTSENT_LOWAT``
unsent, plus what is in flight) -> peer. Both limits are small on purpose: a reader that does not
read holds kilobytes, not megabytes, and "written" stays close to "delivered".
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from twisted.internet import error, interfaces, tcp
from zope.interface import implementer

from gateway_project.server.inbox import Waiters
from gateway_project.server.shares import Shares

# Bytes in user space above which ``send()`` waits.
HIGH_WATER = 8 * 1024
# Bytes the kernel may hold that it has not sent yet. Unlike a small SO_SNDBUF this does not limit
# what is in flight, so long fat networks keep their throughput.
NOTSENT_LOWAT = 16 * 1024
# How long the kernel is still asked what the peer has acknowledged of a closed connection.
LAST_ACKS_SECONDS = 2.0
BACKLOG = 2048
# Of a listening socket that is shared: how long who has more connections lets the others go first, and
# how many it takes before it looks again who has more.
TURN_SECONDS = 0.005
ACCEPTS_AT_ONCE = 8

_SOCKET_OPTIONS = [
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", NOTSENT_LOWAT),
    # Keep-alive probes find the peers that vanished while we had nothing to send. For the others
    # there is ``has_vanished``: TCP_USER_TIMEOUT would cut those too that merely do not read.
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 30),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
]


@implementer(interfaces.IPushProducer)
class WriteGate:
    """Closed while the transport's buffer is over ``HIGH_WATER``; ``send()`` waits at it.

    Twisted calls the three methods of a push producer. A lost connection opens the gate for good,
    so that nobody waits for a peer that is gone.
    """

    __slots__ = ("_lost", "_waiters", "is_open")

    def __init__(self) -> None:
        self.is_open = True
        self._lost = False
        self._waiters = Waiters()

    async def wait(self) -> None:
        """Return when it is open."""
        if not self.is_open:
            await self._waiters.wait()

    def pauseProducing(self) -> None:
        if not self._lost:
            self.is_open = False

    def resumeProducing(self) -> None:
        self.is_open = True
        self._waiters.wake()

    def stopProducing(self) -> None:
        self._lost = True
        self.resumeProducing()


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """The part of Linux's ``struct tcp_info`` that says how a reader is doing."""

    rtt_us: int
    unacked_segments: int
    retransmits: int
    """Retransmissions of the oldest segment in a row, now."""
    probes: int
    """Probes (of a zero window, or keep-alive) in a row without an answer, now."""
    retransmitted_segments: int
    """Over the life of the connection."""
    ms_since_ack: int
    bytes_acked: int
    notsent_bytes: int
    rttvar_us: int
    """How much ``rtt_us`` varies."""
    segments_out: int
    """Over the life of the connection, those that were sent again included."""

    def is_silent(self, seconds: float) -> bool:
        """Whether the peer has acknowledged nothing for so long, although we keep asking it to.

        A peer that merely does not read has a window of zero, and acknowledges our probes.
        """
        asks = (self.unacked_segments > 0 and self.retransmits > 0) or self.probes > 1
        return asks and self.ms_since_ack > seconds * 1000


class GatewayTransport(tcp.Server):
    """A server-side TCP connection that counts, with small buffers."""

    bufferSize = HIGH_WATER
    #: Bytes handed to this transport so far, head and chunk framing included.
    written = 0
    #: How it ended: closed (by the peer), reset, timed_out, or ours. Empty while it lives.
    ended_by = ""
    _unsent_at_close: int | None = None
    _closed_socket: socket.socket | None = None
    _given_up = 0

    def __init__(self, sock: socket.socket, *args: Any) -> None:
        super().__init__(sock, *args)
        self._shares = cast("GatewayPort", self.server).shares
        if self._shares is not None:
            self._shares.opened()
        for level, name, value in _SOCKET_OPTIONS:
            option = getattr(socket, name, None)  # not every platform has every option
            if option is not None:
                try:
                    sock.setsockopt(level, option, value)
                except OSError:
                    pass  # the peer may be gone already; the first read will say so

    def write(self, data: bytes) -> None:
        self.written += len(data)
        if self._nothing_waits() and data:
            # Straight to the kernel: waiting for the reactor to call us "writable" costs two
            # changes of its poll set for every event.
            try:
                data = data[self.socket.send(data) :]
            except OSError:
                pass  # full, or broken: then the reactor's own write meets it and reports it
            if not data:
                return
        super().write(data)

    def _nothing_waits(self) -> bool:
        return bool(
            self.connected
            and not self.disconnecting
            and not self._writeDisconnected
            and not self._tempDataBuffer
            and self.offset == len(self.dataBuffer)
        )

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        self.write(b"".join(iovec))

    def unsent_bytes(self) -> int | None:
        """Bytes of ``written`` that the peer has not acknowledged; after the end, as at the end.

        None where the system cannot tell.
        """
        if self.connected:
            return _in_kernel(self.socket, len(self.dataBuffer) - self.offset + self._tempDataLen)
        if self._closed_socket is not None:
            self._unsent_at_close = _in_kernel(self._closed_socket, self._given_up)
        return self._unsent_at_close

    def connectionLost(self, reason: Any) -> None:
        # Linux still answers after a reset, but not after close(). What leaves with the FIN is
        # acknowledged only after that, so we keep a second descriptor for a moment.
        self.ended_by = self.ended_by or _ended_by(reason)
        if self.connected:
            if self._shares is not None:
                self._shares.closed()
            self._given_up = len(self.dataBuffer) - self.offset + self._tempDataLen
            self._unsent_at_close = self.unsent_bytes()
            if self._unsent_at_close and reason.check(error.ConnectionDone):
                self._closed_socket = self.socket.dup()
                self.reactor.callLater(LAST_ACKS_SECONDS, self._ask_no_more)
        super().connectionLost(reason)

    def vanish(self) -> None:
        """Cut it: the peer is gone without a word."""
        self.ended_by = "timed_out"
        self.abortConnection()

    def _ask_no_more(self) -> None:
        if self._closed_socket is not None:
            self._unsent_at_close = self.unsent_bytes()
            self._closed_socket.close()
            self._closed_socket = None

    def tcp_info(self) -> TcpInfo | None:
        """The kernel's figures for this connection; None when closed or not on Linux."""
        option = getattr(socket, "TCP_INFO", None)
        if option is None or not self.connected:
            return None
        try:
            raw = self.socket.getsockopt(socket.IPPROTO_TCP, option, 152)
        except OSError:
            return None
        if len(raw) < 152:  # a kernel before 4.6
            return None
        words = struct.unpack_from("=24I", raw, 8)
        return TcpInfo(
            rtt_us=words[15],
            unacked_segments=words[4],
            retransmits=raw[2],
            probes=raw[3],
            retransmitted_segments=words[23],
            ms_since_ack=words[12],
            bytes_acked=struct.unpack_from("=Q", raw, 120)[0],
            notsent_bytes=struct.unpack_from("=I", raw, 144)[0],
            rttvar_us=words[16],
            segments_out=struct.unpack_from("=I", raw, 136)[0],
        )

    def has_vanished(self, seconds: float) -> bool:
        """Whether the peer is gone without a word: a phone in a tunnel sends no FIN."""
        info = self.tcp_info()
        return info is not None and info.is_silent(seconds)


def _ended_by(reason: Any) -> str:
    """Who ended a connection, from Twisted's word for it."""
    if reason.check(error.ConnectionDone):
        return "closed"
    if reason.check(error.ConnectionAborted):
        return "ours"
    return "reset"  # also where the kernel gave up: Twisted keeps no errno


def _in_kernel(sock: socket.socket, in_user_space: int) -> int | None:
    """Bytes not acknowledged, those in user space included."""
    try:
        queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except OSError:
        return None
    return struct.unpack("=I", queued)[0] + in_user_space


class GatewayPort(tcp.Port):
    """A listening socket whose connections are ``GatewayTransport``s.

    Twisted already returns quietly from ``accept`` when a sibling process that shares the socket
    was faster (EAGAIN). ``shares``: how many each of these has; who is ahead lets the others go first.
    """

    transport = GatewayTransport  # type: ignore[assignment]
    shares: Shares | None = None

    def doRead(self) -> None:
        if self.shares is None:
            super().doRead()
        elif self.shares.is_ahead:
            self.stopReading()
            self.reactor.callLater(TURN_SECONDS, self._take_turn)
        else:
            self._accept_some()

    def _take_turn(self) -> None:
        """What nobody else has taken meanwhile is ours."""
        if self.connected and not self.disconnecting:
            self._accept_some()
            self.startReading()

    def _accept_some(self) -> None:
        self.numberAccepts = ACCEPTS_AT_ONCE
        super().doRead()


class ConnectionSocket:
    """What a consumer may ask about its connection: ``scope["extensions"]["unbroken.socket"]``.

    Evidence of delivery: note ``written`` after each event; the event has been taken by the peer's
    system once ``taken() >= `` that mark. (By its system: whether the program behind it has read
    the bytes only its own acknowledgement can tell.) All methods stay callable after the end.
    """

    __slots__ = ("_transport",)

    def __init__(self, transport: GatewayTransport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<ConnectionSocket written={self.written} unsent={self.unsent_bytes()}>"

    @property
    def written(self) -> int:
        """Bytes given to this connection so far, over all its responses, framing included."""
        return self._transport.written

    @property
    def ended_by(self) -> str:
        """How the connection ended: closed, reset or timed_out; ``ours``; empty while it lives."""
        return self._transport.ended_by

    def unsent_bytes(self) -> int | None:
        """Bytes not yet acknowledged by the peer (kernel and user space); None if unknown."""
        return self._transport.unsent_bytes()

    def taken(self) -> int | None:
        """Bytes acknowledged by the peer, on the scale of ``written``; None if unknown."""
        unsent = self._transport.unsent_bytes()
        return None if unsent is None else self._transport.written - unsent

    def tcp_info(self) -> TcpInfo | None:
        """The kernel's figures for this connection; None when closed or not on Linux."""
        return self._transport.tcp_info()


def listening_socket(host: str, port: int) -> socket.socket:
    """A non-blocking listening socket. Raises OSError when the address is not to be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    sock.setblocking(False)
    return sock


def adopted_socket(fd: int) -> socket.socket:
    """The listening socket that the parent process left at ``fd``."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    sock.set_inheritable(False)
    return sock
