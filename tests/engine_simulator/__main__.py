"""Run one simulator: prints `READY <port>` once it listens, and dies with its parent."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import signal
import sys

from .engine import EngineOptions
from .server import Simulator
from .templates import TEMPLATES

_PR_SET_PDEATHSIG = 1


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.engine_simulator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--control-socket", help="Unix socket that `refuse` does not close")
    parser.add_argument("--dialect", choices=["vllm", "llamacpp"], default="vllm")
    parser.add_argument("--model", default="sim-model")
    parser.add_argument("--template", choices=sorted(TEMPLATES), default="chatml")
    parser.add_argument("--pace", type=float, default=0.0, help="tokens a second; 0 is unpaced")
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--prefill-us-per-token", type=float, default=0.0)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--slots", type=int, default=4096, help="requests running at once")
    parser.add_argument("--text-only", action="store_true", help="no token ids in or out")
    return parser.parse_args(arguments)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the parent is gone")


async def _serve(options: argparse.Namespace) -> None:
    values = vars(options)
    host, port, control = (values.pop(name) for name in ("host", "port", "control_socket"))
    simulator = Simulator(EngineOptions(**values))
    port = await simulator.listen(host, port)
    if control:
        await simulator.listen_for_control(control)
    print(f"READY {port}", flush=True)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()


def main() -> None:
    """Parse the command line and serve until SIGTERM."""
    options = _parse(sys.argv[1:])
    _die_with_parent()
    gc.freeze()  # the vocabulary never becomes garbage
    asyncio.run(_serve(options))


if __name__ == "__main__":
    main()
