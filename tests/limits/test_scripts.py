"""The scripts in a real Redis against the rules in Python: whatever is done in whatever order.

The clock of the scripts is a key that the test sets, nothing else of them is changed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator
from typing import Any, TypeVar
from uuid import UUID

import pytest
import redis
from hypothesis import given, note, settings
from hypothesis import strategies as st

from streaming.core.levels import Level
from streaming.core.limits import Ask, Debit, Rate
from streaming.core.local_limits import LocalLimits
from streaming.runtime import limit_scripts
from streaming.runtime.limit_store import RedisLimits

T = TypeVar("T")

CLOCK = "test:clock"
TERMS: dict[str, int] = {"slot_lease": 6_000_000, "place_lease": 5_000_000, "places": 4}
STARTED = 1_800_000_000_000_000
SESSIONS = [UUID(int=number) for number in range(1, 9)]

amounts = st.integers(1, 400)
rates = st.lists(
    st.tuples(
        st.sampled_from(["requests.a", "requests.b", "tokens.a"]),
        st.sampled_from([0, 1, 7, 100]),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda rate: rate[0],
)
scopes = st.sampled_from([(), (("a", 1),), (("a", 2), ("b", 1))])
tokens = st.sampled_from([(), (("a", 100),), (("a", 100), ("b", 7))])
sessions = st.sampled_from(SESSIONS)
asks = st.tuples(
    sessions, st.sampled_from(["u", "v", "w"]), st.sampled_from(list(Level)), scopes, tokens
)
steps = st.one_of(
    st.tuples(st.just("wait"), st.integers(1, 8_000_000)),
    st.tuples(st.just("admit"), rates),
    st.tuples(st.just("give_back"), rates),
    st.tuples(st.just("debit"), st.tuples(sessions, st.integers(0, 9), amounts, tokens)),
    st.tuples(st.just("queue"), st.tuples(st.lists(asks, max_size=3, unique_by=lambda a: a[0]), st.booleans())),
    st.tuples(st.just("renew"), st.tuples(sessions, scopes, tokens)),
    st.tuples(st.just("release"), st.tuples(sessions, st.booleans())),
)  # fmt: skip


class Both:
    """Redis and the model, side by side."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: redis.Redis, store: RedisLimits):
        self.loop, self.client, self.store = loop, client, store
        for key in client.scan_iter(f"{limit_scripts.PREFIX}*"):
            client.delete(key)
        self.model = LocalLimits(**TERMS, kept=3600_000_000)
        self.now = STARTED
        self.wait(0)

    def wait(self, microseconds: int) -> None:
        self.now += microseconds
        pipe = self.client.pipeline()
        pipe.delete(CLOCK).rpush(CLOCK, *divmod(self.now, 1_000_000)).execute()

    def run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return self.loop.run_until_complete(awaited())

    def do(self, kind: str, what: Any) -> None:
        store, model, now = self.store, self.model, self.now
        if kind == "wait":
            self.wait(what)
        elif kind in ("admit", "give_back"):
            some = [Rate(*rate) for rate in what]
            if kind == "admit":
                assert self.run(store.admit(some)) == model.admit(some, now)
            else:
                some = [rate for rate in some if rate.per_minute]
                self.run(store.give_back(some))
                model.give_back(some, now)
        elif kind == "debit":
            session_id, base, more, scopes = what
            debits = [Debit(session_id, base, base + more, scopes)]
            assert self.run(store.debit(debits)) == model.debit(debits, now)
        elif kind == "queue":
            who, is_new = what
            some_asks = [Ask(*ask, is_new=is_new) for ask in who]
            assert self.run(store.queue("t", some_asks)) == model.queue("t", some_asks, now)
        elif kind == "renew":
            session_id, slots, tokens = what
            kept = [Ask(session_id, "", Level.STANDARD, slots, tokens, is_new=False)]
            assert self.run(store.renew(kept)) == model.renew(kept, now)
        else:
            self.run(store.release([what]))
            model.release([what])


@pytest.fixture(scope="module")
def parts() -> Iterator[tuple[asyncio.AbstractEventLoop, redis.Redis, RedisLimits]]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ADMIT", "GIVE_BACK", "DEBIT", "QUEUE", "RENEW", "RELEASE"):
            script = getattr(limit_scripts, name)
            script = script.replace("redis.call('TIME')", f"redis.call('LRANGE', '{CLOCK}', 0, 1)")
            # Redis itself still forgets by the real clock: not within a test.
            patch.setattr(limit_scripts, name, script.replace("+ 1000)", "+ 600000)"))
        url = os.environ["REDIS_URL"]
        loop = asyncio.new_event_loop()

        async def made() -> RedisLimits:
            return RedisLimits(url, **TERMS, kept=3600)

        store = loop.run_until_complete(made())
        with redis.Redis.from_url(url) as client:
            yield loop, client, store
            client.delete(CLOCK)
        loop.run_until_complete(store.close())
        loop.close()


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(course=st.lists(steps, min_size=1, max_size=25))
def test_redis_does_what_the_model_does(parts: Any, course: list[tuple[str, Any]]) -> None:
    note(repr(course))
    both = Both(*parts)
    for kind, what in course:
        both.do(kind, what)
    all_rates = [Rate(f"{unit}.{name}", 100, 0) for unit in ("requests", "tokens") for name in "ab"]
    assert both.run(both.store.admit(all_rates)) == both.model.admit(all_rates, both.now)
