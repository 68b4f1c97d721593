"""``KeepAlive``: bytes on a silent stream, on a timer of its own.

It depends on nothing but the event loop, so a reader hears from us while runner, journal or
database are stuck.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from streaming.conf import conf
from streaming.consumers.request import Request
from streaming.core.ladder import told_silence
from streaming.errors import InvalidRequest

KEEPALIVE = b":keepalive\n\n"
PING = b": ping\n\n"


MIN_INTERVAL, MAX_INTERVAL = 1.0, 30.0


def wanted_interval(request: Request) -> float | None:
    """Seconds of silence after which this client wants to hear from us; None: it has no wish.

    ``?heartbeat=`` or ``X-Unbroken-Heartbeat``, 1 to 30. Raises ``InvalidRequest``.
    """
    wanted = request.query.get("heartbeat") or request.header("x-unbroken-heartbeat")
    return None if wanted is None else parsed_interval(wanted)


def parsed_interval(wanted: str) -> float:
    """Raises ``InvalidRequest``."""
    try:
        seconds = float(wanted)
    except ValueError:
        seconds = 0.0
    if not MIN_INTERVAL <= seconds <= MAX_INTERVAL:
        raise InvalidRequest("heartbeat must be 1 to 30 seconds.", param="heartbeat")
    return seconds


def silence(wanted: float | None) -> float:
    """Seconds of silence after which this client should give its connection up."""
    longest = conf().keepalive_seconds if wanted is None else wanted
    return told_silence(conf().client_silence, longest)


class Stream(Protocol):
    """The side of a consumer that is kept alive; ``StreamConsumer`` is one."""

    last_write: float
    """``loop.time()`` of the last write."""
    writing: bool
    """Whether a write waits for a slow reader."""

    async def write(self, data: bytes) -> None: ...


class KeepAlive:
    """Writes ``comment`` whenever ``stream`` has been silent for ``interval`` seconds.

    The stream only notes the time of its writes; one timer looks at it when the silence would be
    up, and sleeps for the rest if something was written meanwhile. Nothing is written while a
    write waits for the reader: what waits is better than a comment. Use as a context manager:

        with KeepAlive(self, 8.0) as keep_alive:
            ...
            keep_alive.change(1.0, PING, now=True)   # the answer is being recovered
    """

    def __init__(self, stream: Stream, interval: float, comment: bytes = KEEPALIVE) -> None:
        self._stream = stream
        self._interval = interval
        self._comment = comment
        self._loop = asyncio.get_running_loop()
        self._looked = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._write: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "off" if self._timer is None else "on"
        return f"<KeepAlive {state} every {self._interval} s>"

    def __enter__(self) -> KeepAlive:
        self._look_again()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def change(self, interval: float, comment: bytes = KEEPALIVE, *, now: bool = False) -> None:
        """Change the pace; with ``now``, write the comment at once as well."""
        self._interval = interval
        self._comment = comment
        if now:
            self._send()
        if self._timer is not None:
            self._timer.cancel()
            self._look_again()

    def _look_again(self) -> None:
        # Counted from now where a write has been waiting for longer than the interval.
        due = max(self._stream.last_write, self._looked) + self._interval
        self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if now - self._stream.last_write >= self._interval:
            self._looked = now
            self._send()
        self._look_again()

    def _send(self) -> None:
        if not self._stream.writing:
            self._write = self._loop.create_task(self._write_comment())

    async def _write_comment(self) -> None:
        try:
            await self._stream.write(self._comment)
        except OSError:
            pass  # the client has left; the consumer learns it from its own watcher
