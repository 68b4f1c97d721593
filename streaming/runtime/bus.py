"""Hints between gateway processes, over the channel layer.

Never tokens, and nothing that is not found out otherwise: the layer drops messages past its
capacity and forgets groups when Redis restarts. Without Redis everything works, only slower.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from channels.exceptions import ChannelFull
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
NEWS_SECONDS = 0.15
ALL = "gateways"
# The last two: what cannot be put into a message.
LAYER_ERRORS = (RedisError, OSError, ChannelFull, TimeoutError, OverflowError, TypeError)


class Bus:
    """Receives this process's messages, and sends to others by instance id."""

    def __init__(self, instance_id: int, receive: Callable[[dict[str, Any]], None]) -> None:
        self._instance_id = instance_id
        self._receive = receive
        self._layer = get_channel_layer()
        self._task: asyncio.Task[None] | None = None
        self._quiet_until = 0.0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="bus")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def send(self, instance_id: int, message: dict[str, Any]) -> None:
        """Tell a process something; it may not arrive."""
        await self._send(_group(instance_id), message)

    async def broadcast(self, message: dict[str, Any]) -> None:
        """Tell all processes something, this one too; it may not arrive.

        Not at once: when a node dies, the streams that were on it come first.
        """
        await asyncio.sleep(NEWS_SECONDS)
        await self._send(ALL, message)

    async def _send(self, group: str, message: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._quiet_until:
            return
        try:
            async with asyncio.timeout(1.0):
                await self._layer.group_send(group, message)
        except LAYER_ERRORS as exc:
            # Hints are worth no queue of failing calls.
            self._quiet_until = loop.time() + RETRY_SECONDS
            logger.info("a hint was not sent: %s", exc)

    async def _run(self) -> None:
        while True:
            try:
                channel = await self._layer.new_channel()
                await self._layer.group_add(_group(self._instance_id), channel)
                await self._layer.group_add(ALL, channel)
                while True:
                    self._receive(await self._layer.receive(channel))
            except LAYER_ERRORS as exc:
                logger.info("hints are not received: %s", exc)
            await asyncio.sleep(RETRY_SECONDS)


def _group(instance_id: int) -> str:
    return f"gateway.{instance_id}"
