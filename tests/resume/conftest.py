"""Two gateways over two engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack

import pytest

from tests.engine_simulator.process import SimulatorProcess
from tests.resume.proxy import Proxy
from tests.stack import Stack

Start = Callable[..., tuple[Stack, list[SimulatorProcess]]]


@pytest.fixture
def stack_of_two(start_stack: Callable[..., Stack]) -> Iterator[Start]:
    """Start gateways (two, if not told otherwise) over two engines; ``pace`` in tokens a second."""
    with ExitStack() as resources:

        def start(
            *,
            pace: float = 0,
            gateways: int = 2,
            env: dict[str, str] | None = None,
            **servers: bool,
        ) -> tuple[Stack, list[SimulatorProcess]]:
            engines = [
                resources.enter_context(SimulatorProcess("vllm", pace=pace)) for _ in range(2)
            ]
            nodes = [f"{name}=vllm+{node.url}" for name, node in zip("ab", engines, strict=True)]
            stack = start_stack(
                gateways=gateways,
                engine_nodes=nodes,
                env={"HEALTH_INTERVAL": "0.3", "GRACE_SECONDS": "2", **(env or {})},
                **servers,
            )
            return stack, engines

        yield start


@pytest.fixture
async def start_proxy() -> AsyncIterator[Callable[..., Awaitable[Proxy]]]:
    """Start proxies (see ``Proxy`` for the arguments) that end with the test."""
    async with AsyncExitStack() as resources:

        async def start(port: int, **options: float) -> Proxy:
            return await resources.enter_async_context(Proxy(port, **options))

        yield start
