"""A proxy that cuts every connection at the same age, as some balancers do: a process of its own.

``python -m bench.chaos.proxy SECONDS PORT…`` prints the ports that stand for the given ones.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

from tests.resume.proxy import Proxy


async def _serve(seconds: float, ports: list[int]) -> None:
    async with AsyncExitStack() as stack:
        proxies = [Proxy(port, lifetime=seconds) for port in ports]
        for proxy in proxies:
            await stack.enter_async_context(proxy)
        print("READY", *(proxy.port for proxy in proxies), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
