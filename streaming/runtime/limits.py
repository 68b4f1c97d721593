"""Limits that warn before they strike, at no cost per token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from streaming.conf import conf
from streaming.core.attribution import attribute_end
from streaming.core.ladder import SOFT_ANSWER, SOFT_SILENCE
from streaming.core.state import SessionState
from streaming.errors import AnswerTimeout
from streaming.runtime.journal import record_event
from streaming.runtime.live import LiveSession, SessionEnd
from streaming.runtime.records import now

OWN_PAUSE = 0.5
"""A timer that is as late as this says more about our own loop than about what it watches."""


class LimitTimer:
    """Calls ``soft`` when nothing has moved for ``share`` of the limit, and ``hard`` at the limit.

    Both get the seconds since anything moved. ``soft`` comes once in each silence, ``hard`` once.
    Data only notes its time; one timer looks when the next threshold would be reached, and sleeps
    for the rest if something came meanwhile. Without ``moved`` it limits the whole of what it is
    put around. Use as a context manager:

        with LimitTimer(60.0, soft=warn, hard=give_up) as limit:
            async for chunk in stream:
                limit.moved(loop.time(), 22.0)  # from now on this limit is in force
    """

    __slots__ = ("_hard", "_last", "_limit", "_loop", "_share", "_soft", "_timer", "_warned_of")

    def __init__(
        self,
        limit: float,
        *,
        soft: Callable[[float], None],
        hard: Callable[[float], None],
        share: float = SOFT_SILENCE,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._share = share
        self._soft = soft
        self._hard = hard
        self._last = self._loop.time()
        self._warned_of: float | None = None
        """The beginning of the silence that was warned of."""
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "off" if self._timer is None else "on"
        return f"<LimitTimer {state}, {self._limit:g} s, silent {self._loop.time() - self._last:.1f} s>"

    def __enter__(self) -> Self:
        self._look_at(self._last + self._share * self._limit)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def moved(self, at: float, limit: float) -> float:
        """Data has come at loop time ``at``; from now on ``limit`` is in force. Returns ``at``."""
        self._last = at
        if limit < self._limit and self._timer is not None:
            self._timer.cancel()
            self._look_at(at + self._share * limit)
        self._limit = limit
        return at

    @contextmanager
    def paused(self) -> Iterator[None]:
        """We are the ones who do not read: the silence says nothing."""
        self.__exit__()
        try:
            yield
        finally:
            self._last = self._loop.time()
            self.__enter__()

    def _look_at(self, when: float) -> None:
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        at = self._loop.time()
        soft, hard = self._last + self._share * self._limit, self._last + self._limit
        if at >= hard + OWN_PAUSE:
            # This process stood still: what has come meanwhile is still to be read.
            self._last = at - self._limit
            self._look_at(at + OWN_PAUSE / 2)
            return
        if at >= soft and self._warned_of != self._last:
            self._warned_of = self._last
            self._soft(at - self._last)
        if at >= hard:
            self._hard(at - self._last)
        else:
            self._look_at(soft if at < soft else hard)


def silence_limit(
    session: LiveSession, node: str, timeout: asyncio.Timeout, limit: float
) -> LimitTimer:
    """Lets ``timeout`` expire when the engine is silent for the limit; its warning is the event
    ``engine_silent`` in the session's time-line, with the node and the seconds."""
    loop = asyncio.get_running_loop()

    def warn(silence: float) -> None:
        _note(session, "engine_silent", node=node, seconds=round(silence, 1))

    return LimitTimer(limit, soft=warn, hard=lambda _: timeout.reschedule(loop.time()))


def answer_limit(session: LiveSession) -> LimitTimer:
    """Ends the session as failed when its answer takes longer than ``max_answer_seconds``; the
    warning is the event ``answer_long``. To be put around the runner's work on it."""
    limit = conf().max_answer_seconds

    def warn(seconds: float) -> None:
        _note(session, "answer_long", seconds=round(seconds, 1), limit=limit)

    def end(_: float) -> None:
        if session.finish_reason:  # whole already: only its end is still being written
            return
        error = AnswerTimeout(f"The answer took longer than {limit:g} s.")
        blame, evidence = attribute_end(error.code)
        session.ask_to_end(
            SessionEnd(
                SessionState.FAILED,
                cause=blame.value,
                error=error.as_openai()["error"],
                evidence={**evidence, "limit": limit},
            )
        )

    return LimitTimer(limit, soft=warn, hard=end, share=SOFT_ANSWER)


def _note(session: LiveSession, kind: str, **data: object) -> None:
    if session.state.is_end or session.log.lost is not None:
        return
    session.log.note(record_event(session.id, kind, session.log.last_seq, now(), **data))
