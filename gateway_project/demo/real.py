"""Real answers from the gateway that runs: engines fail under them, and readers come and go."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway_project.demo.answers import question
from streaming.client import NetworkError, ServerError, UnbrokenClient

AT_ONCE = 6
MOST_TOKENS = 160
FAULT_AT = (3, 90)
"""After which token an engine is to fail, at least and at most."""
KILL_SECONDS = 20.0
"""Between two engines that are really killed, at most."""
PATIENCE = 60.0
REHEARSED = 0.4
"""The share of answers that a fault is rehearsed under."""
ABSENCES = (0.5, 2.0, 6.0)
"""Seconds that somebody is away who comes back: within the grace period, or beyond it."""
OUR_FAULT = frozenset({400, 401, 404})
"""It would be no better the next time."""

ENDS = (("whole", 62), ("came back", 18), ("left", 12), ("stopped", 8))
"""What becomes of how many in a hundred."""


@dataclass(slots=True)
class Tally:
    """What has become of the answers, and how many engines were killed under them."""

    ends: Counter[str] = field(default_factory=Counter)
    rehearsed: int = 0
    killed: int = 0

    @property
    def done(self) -> int:
        return self.ends.total()

    def __str__(self) -> str:
        told = ", ".join(f"{count} {what}" for what, count in sorted(self.ends.items()))
        return (
            f"{self.done} real answers ({told or 'none'}); {self.rehearsed} with rehearsed faults,"
            f" {self.killed} engines killed"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Whom to ask for what. ``kill``: kills an engine for good reason, and tells whether it did;
    None: none may be killed."""

    url: str
    key: str
    model: str
    users: tuple[str, ...]
    chance: random.Random
    kill: Callable[[], bool] | None = None
    tell: Callable[[Tally], None] = lambda tally: None


async def play(script: Script, count: int) -> Tally:
    """Read so many answers, a few at once. Raises ``ServerError`` where the gateway takes none."""
    tally = Tally()
    chaos = asyncio.create_task(_kill_now_and_then(script, tally))
    turns = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with turns:
            tally.ends[await _read(script, tally)] += 1
            script.tell(tally)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(one())
    except* ServerError as errors:
        raise _first(errors) from None
    finally:
        chaos.cancel()
        await asyncio.gather(chaos, return_exceptions=True)
    return tally


def _first(errors: BaseExceptionGroup[ServerError]) -> ServerError:
    one = errors.exceptions[0]
    return _first(one) if isinstance(one, BaseExceptionGroup) else one


async def _read(script: Script, tally: Tally) -> str:
    """One answer; what became of it."""
    chance = script.chance
    what = chance.choices([name for name, _ in ENDS], [weight for _, weight in ENDS])[0]
    body = {
        "model": script.model,
        "messages": [{"role": "user", "content": question(chance)}],
        "max_tokens": MOST_TOKENS,
        "temperature": 0.7,
    }
    fault = f"kill@{chance.randint(*FAULT_AT)}" if chance.random() < REHEARSED else ""
    tally.rehearsed += bool(fault)
    user = chance.choice(script.users)
    enough = MOST_TOKENS if what == "whole" else chance.randint(5, 60)
    try:
        async with _client(script, user, fault) as client:
            session = await client.start(body)
            async for piece in session:
                if piece.seq >= enough and what != "whole":
                    break
            else:
                return "whole"
            if what == "stopped":
                await session.stop()
        if what == "came back":
            await asyncio.sleep(chance.choice(ABSENCES))
            async with _client(script, user) as client:  # another connection
                async for _ in client.resume(session.id, session.seq):
                    pass
    except ServerError as error:
        if error.status in OUR_FAULT:
            raise
        return "failed"
    except NetworkError:
        return "failed"
    return what


def _client(script: Script, user: str, fault: str = "") -> UnbrokenClient:
    client = UnbrokenClient(script.url, script.key, user=user, patience=PATIENCE)
    if fault:
        client.http.headers["x-unbroken-rehearse"] = fault
    return client


async def _kill_now_and_then(script: Script, tally: Tally) -> None:
    while script.kill is not None:
        await asyncio.sleep(KILL_SECONDS * script.chance.uniform(0.4, 1.0))
        tally.killed += await asyncio.to_thread(script.kill)
