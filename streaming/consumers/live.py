"""``/ws/admin/live/``: the live board's figures, each second, to members of staff.

Nothing is queued: a watcher whose connection is slow gets the newest snapshot when it has room, and
never sees those in between. The page polls ``/admin/live/data`` where no socket can be had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from channels.db import DatabaseSyncToAsync
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import Error

from streaming.admin.tenancy import tenants_of
from streaming.consumers.socket_messages import NO_CHANNEL_LAYER
from streaming.consumers.staff import Handshake
from streaming.errors import ShuttingDown
from streaming.runtime.gateway import current
from streaming.services.live_board import Tenants, board

logger = logging.getLogger(__name__)

PERMISSION = "streaming.watch_live_board"
MAX_WATCHERS = 200
TICK_SECONDS = 1.0
CHECK_SECONDS = 5.0
"""How long somebody who has logged out may go on watching."""
SEND_SECONDS = 30.0
"""How long a watcher may take for one snapshot."""

LOGGED_OUT = 4401
FORBIDDEN = 4403
NOT_UNDERSTOOD = 1003
RESTARTING = 1012
TRY_LATER = 1013


class Watcher:
    """Holds the newest snapshot that was not sent yet; older ones are forgotten."""

    def __init__(self, tenants: Tenants) -> None:
        self.tenants = tenants
        self._newest = ""
        self._has_news = asyncio.Event()

    def offer(self, text: str) -> None:
        self._newest = text
        self._has_news.set()

    async def news(self) -> str:
        """The newest snapshot, once there is one that this has not returned yet."""
        await self._has_news.wait()
        self._has_news.clear()
        return self._newest


class Feed:
    """Reads the board while somebody watches: one task, whatever their number."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Feed for {len(self._watchers)} watchers>"

    @property
    def is_full(self) -> bool:
        return len(self._watchers) >= MAX_WATCHERS

    def join(self, tenants: Tenants) -> Watcher:
        watcher = Watcher(tenants)
        self._watchers.add(watcher)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="live board")
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        if not self._watchers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            for tenants in {watcher.tenants for watcher in self._watchers}:
                try:
                    text = orjson.dumps(await in_thread(board.current)(tenants)).decode()
                except Error as exc:  # watchers see how old their figures are
                    logger.warning("the live board cannot be read: %s", exc)
                    continue
                except Exception:  # one bad row must not end the board for the rest of the day
                    logger.exception("the live board failed")
                    continue
                for watcher in self._watchers:
                    if watcher.tenants == tenants:
                        watcher.offer(text)
            await asyncio.sleep(max(0.2, began + TICK_SECONDS - loop.time()))


def in_thread(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """In a thread of its own: it must not wait for requests of the admin, nor they for it."""
    return DatabaseSyncToAsync(function, thread_sensitive=False)


feed = Feed()
"""Of this process."""


class LiveSocket(AsyncWebsocketConsumer):
    """Sends ``live_board.snapshot`` as JSON; takes no messages."""

    channel_layer_alias = NO_CHANNEL_LAYER

    _watcher: Watcher | None = None
    _task: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        self._handshake = Handshake(self.scope)
        if not self._handshake.is_of_our_own_pages():
            await self.close()  # refused with a 403: a foreign page is told nothing more
            return
        await self.accept()
        try:
            tenants, code = await in_thread(self._entitled)()
        except Error:
            tenants, code = None, TRY_LATER
        if feed.is_full:
            code = code or TRY_LATER
        if code:
            await self.close(code)
            return
        self._watcher = feed.join(tenants)
        self._task = asyncio.create_task(self._serve(self._watcher), name="live board's watcher")

    async def disconnect(self, code: int) -> None:
        if self._watcher is not None:
            feed.leave(self._watcher)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self._watcher is not None:
            await self.close(NOT_UNDERSTOOD)

    def _entitled(self) -> tuple[Tenants, int]:
        """Whose figures may be seen, and 0; or why none, as a close code."""
        user = self._handshake.staff()
        if user is None:
            return frozenset(), LOGGED_OUT
        if not user.has_perm(PERMISSION):
            return frozenset(), FORBIDDEN
        return tenants_of(user), 0

    async def _serve(self, watcher: Watcher) -> None:
        try:
            code = await self._send_until_told(watcher)
        finally:
            feed.leave(watcher)
        await self.close(code)

    async def _send_until_told(self, watcher: Watcher) -> int:
        """Send what there is until the watcher is no longer entitled to it, or we have to leave."""
        loop = asyncio.get_running_loop()
        checked = loop.time()
        while True:
            text = ""
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    text = await watcher.news()
            except TimeoutError:
                pass
            if _must_leave():
                return RESTARTING
            if loop.time() - checked >= CHECK_SECONDS or not text:
                try:
                    tenants, code = await in_thread(self._entitled)()
                except Error:
                    continue  # nobody can be asked, and there is nothing new to be seen
                if code or tenants != watcher.tenants:
                    return code or RESTARTING
                checked = loop.time()
            if not text:
                continue
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await self.send(text_data=text)
            except TimeoutError:
                return TRY_LATER


def _must_leave() -> bool:
    """Whether this process is about to end: watchers find another one."""
    try:
        return current().draining
    except ShuttingDown:
        return False  # no streams here, which is no reason not to show those of others
