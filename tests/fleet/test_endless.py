"""Work for all nodes does not end because of one."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from streaming.fleet import endless as module
from streaming.fleet.endless import endless


async def test_it_begins_again_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    begun = asyncio.Event()
    times = 0

    async def work() -> None:
        nonlocal times
        times += 1
        if times < 3:
            raise OverflowError("a figure that no engine has")
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(endless(work, "the chronicle"))
    async with asyncio.timeout(5):
        await begun.wait()
    assert caplog.text.count("the chronicle broke off and begins again") == 2
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
