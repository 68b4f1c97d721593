"""Notices that an engine has gone silent, at no cost per token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

# A timer that is as late as this says more about our own loop than about the engine.
OWN_PAUSE = 0.5


class StallTimer:
    """Lets ``timeout`` expire when nothing has moved for the limit in force.

    Data only notes its time; one timer looks when the silence would be up, and sleeps for the rest
    if something came meanwhile. (Rescheduling an ``asyncio.timeout`` makes a timer per token.)
    """

    __slots__ = ("_last", "_limit", "_loop", "_timeout", "_timer")

    def __init__(self, timeout: asyncio.Timeout, limit: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._limit = limit
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._timer = self._loop.call_at(self._last + self._limit, self._look)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def moved(self, now: float, limit: float) -> float:
        """Data has come; from now on ``limit`` is in force. Returns ``now``."""
        self._last = now
        if limit < self._limit and self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_at(now + limit, self._look)
        self._limit = limit
        return now

    @contextmanager
    def paused(self) -> Iterator[None]:
        """We are the ones who do not read: the engine's silence says nothing."""
        self.__exit__()
        try:
            yield
        finally:
            self._last = self._loop.time()
            self.__enter__()

    def _look(self) -> None:
        due = self._last + self._limit
        now = self._loop.time()
        if now >= due + OWN_PAUSE:
            # This process stood still: what has come meanwhile is still to be read.
            self._last = now - self._limit
            self._timer = self._loop.call_at(now + OWN_PAUSE / 2, self._look)
        elif now >= due:
            self._timer = None
            self._timeout.reschedule(now)
        else:
            self._timer = self._loop.call_at(due, self._look)
