"""Two gateways with one Redis and two engines; each test has a tenant of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
import redis

from streaming.core.gcra import Figure
from streaming.runtime.limit_scripts import PREFIX
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

PACE = 100
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Desk:
    """What a test may have: ``tenant`` makes one with limits, and a key of it."""

    stack: Stack
    engines: list[SimulatorProcess]
    redis: redis.Redis

    def tenant(self, **limits: int) -> tuple[str, int]:
        """Its name and id."""
        name = f"t{next(_numbers)}-{uuid4().hex[:6]}"
        self.stack.api_key(name)
        for column, limit in limits.items():
            self.stack.sql(
                f"UPDATE streaming_tenant SET {column} = %s WHERE name = %s", limit, name
            )
        return name, self.stack.sql("SELECT id FROM streaming_tenant WHERE name = %s", name)[0][0]

    def key(self, **limits: int) -> tuple[str, int]:
        """A key of a new tenant with limits, and the tenant's id."""
        name, tenant_id = self.tenant(**limits)
        return self.stack.api_key(name), tenant_id

    def used(self, scope: str, limit: int, unit: str = "tokens") -> int:
        """What of a limit is used, as everybody sees it."""
        seconds, microseconds = self.redis.time()
        empty_at = int(self.redis.get(f"{PREFIX}rate:{unit}.{scope}") or 0)
        return Figure(limit, max(0, empty_at - seconds * 1_000_000 - microseconds)).used

    def seen(self, session_id: str) -> int:
        """Tokens of a session that were debited."""
        return int(self.redis.hget(f"{PREFIX}session:{session_id}", "seen") or 0)

    def slots(self, scope: str) -> set[str]:
        """Sessions whose leases have not ended."""
        seconds, microseconds = self.redis.time()
        now = seconds * 1_000_000 + microseconds
        found = self.redis.zrangebyscore(f"{PREFIX}slots:{scope}", now, "+inf")
        return {member.decode() for member in found}

    def waiting(self, tenant_id: int) -> int:
        return int(self.redis.zcard(f"{PREFIX}queue:{tenant_id}"))

    def delivered(self, session_id: str) -> int:
        """Tokens for which there is evidence."""
        ((mark, tokens),) = self.stack.sql(
            "SELECT f.delivered_seq, coalesce(CASE WHEN s.ended_at IS NOT NULL THEN s.completion_tokens END,"
            " f.durable_seq) FROM session_fence f JOIN streaming_streamsession s ON s.id = f.session_id"
            " WHERE s.id = %s",
            session_id,
        )
        return min(mark, tokens)


@pytest.fixture(scope="package")
def _desk() -> Iterator[Desk]:
    with (
        SimulatorProcess("vllm", pace=PACE) as a,
        SimulatorProcess("vllm", pace=PACE) as b,
        Stack(
            gateways=2,
            engine_nodes=[f"a=vllm+{a.url}", f"b=vllm+{b.url}"],
            env={"QUEUE_SECONDS": "60", "GRACE_SECONDS": "1"},
        ) as stack,
        redis.Redis.from_url(stack.redis_url) as client,
    ):
        yield Desk(stack, [a, b], client)


@pytest.fixture
def desk(_desk: Desk) -> Desk:
    for engine in _desk.engines:
        engine.clear_faults()
    return _desk
