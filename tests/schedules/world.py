"""What schedules happen to: two gateways, two engines, a Redis of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Gateway, Stack

PACE = 120
POLICIES = ("suspend", "suspend", "finish", "cancel")
ENVIRONMENT = {
    "GRACE_SECONDS": "0.8",
    "HEALTH_INTERVAL": "0.2",
    "NODE_WAIT_SECONDS": "30",
    # How often in a row engines die here is no fault of theirs.
    "MAX_FAILOVERS": "20",
    "MAX_ATTEMPTS": "50",
    "MAX_LEAD": "60",
}


@dataclass
class World:
    stack: Stack
    engines: list[SimulatorProcess]
    keys: dict[str, str]
    """By ``on_disconnect`` policy."""
    frozen: set[Gateway] = field(default_factory=set)
    wrong_prefixes: list[str] = field(default_factory=list)
    """What engines that have died since were wrongly asked for."""
    hand: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    """One thing after the other; and processes end with the thread that has started them."""

    async def do(self, action: Callable[[], object]) -> None:
        await asyncio.get_running_loop().run_in_executor(self.hand, action)

    @property
    def urls(self) -> list[str]:
        return [gateway.url for gateway in self.stack.gateways]

    def kill_engine(self, engine: SimulatorProcess) -> None:
        if engine.is_alive:
            self.wrong_prefixes += wrong_prefixes(engine)
            engine.kill()

    def kill_gateway(self, gateway: Gateway) -> None:
        self.frozen.discard(gateway)
        gateway.kill()

    def freeze(self, gateway: Gateway) -> None:
        if gateway.process.poll() is None:
            gateway.stop()
            self.frozen.add(gateway)

    def thaw(self, gateway: Gateway) -> None:
        if gateway in self.frozen:
            self.frozen.discard(gateway)
            gateway.cont()

    def revive_gateway(self, gateway: Gateway) -> None:
        if gateway.process.poll() is not None:
            gateway.start_again()

    def revive_engine(self, engine: SimulatorProcess) -> None:
        if not engine.is_alive:
            engine.restart()

    def heal(self) -> None:
        """Everything runs again."""
        for gateway in self.stack.gateways:
            self.thaw(gateway)
            self.revive_gateway(gateway)
        for engine in self.engines:
            self.revive_engine(engine)


def wrong_prefixes(engine: SimulatorProcess) -> list[str]:
    """What the engine was asked to go on from and refused: it was no answer of its model."""
    requests = engine.stats()["requests"]
    return [f"{r['request_id']}: {r['wrong']}" for r in requests if r["outcome"] == "wrong_prefix"]


@contextmanager
def world() -> Iterator[World]:
    with (
        SimulatorProcess("vllm", pace=PACE) as a,
        SimulatorProcess("vllm", pace=PACE) as b,
        Stack(
            gateways=2,
            engine_nodes=[f"a=vllm+{a.url}", f"b=vllm+{b.url}"],
            env=ENVIRONMENT,
            private_redis=True,
        ) as stack,
    ):
        keys = {policy: stack.api_key(on_disconnect=policy) for policy in POLICIES}
        one = World(stack, [a, b], keys)
        yield one
        one.hand.shutdown()
