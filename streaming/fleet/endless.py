"""Background work that goes on whatever happens in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0


async def endless(work: Callable[[], Awaitable[None]], name: str) -> None:
    """Run ``work``, which never returns; begin it again when something unforeseen has ended it.

    One strange answer of one engine must not end what is done for all of them.
    """
    while True:
        try:
            await work()
        except Exception:
            logger.exception("%s broke off and begins again", name)
        await asyncio.sleep(PAUSE_SECONDS)
