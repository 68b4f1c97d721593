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
    parser.add_argument("--kv-blocks", type=int, default=0, help="of vLLM's KV-cache; 0 is plenty")
    parser.add_argument("--text-only", action="store_true", help="no token ids in or out")
    parser.add_argument("--no-prefix-caching", action="store_false", dest="prefix_caching")
    parser.add_argument("--no-metrics", action="store_false", dest="metrics")
    parser.add_argument("--no-slots", action="store_false", dest="slots_endpoint")
    parser.add_argument("--scale-out", action="store_true", help="vLLM: abort by id for everybody")
    parser.add_argument("--priority-scheduling", action="store_true", help="vLLM: takes priorities")
    parser.add_argument("--dev-mode", action="store_true", help="vLLM: abort, pause, reset a cache")
    parser.add_argument("--slot-save-path", default="", help="llama.cpp: without it none is erased")
    parser.add_argument("--api-key", default="", help="asked for everywhere but at /health")
    parser.add_argument("--sse-keep-alive", type=float, default=0.0, help="a comment each seconds")
    parser.add_argument("--tls-cert", default="", help="PEM file; with --tls-key it speaks HTTPS")
    parser.add_argument("--tls-key", default="")
    parser.add_argument("--client-ca", default="", help="clients need a certificate it has signed")
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
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stopped.set)
    loop.add_signal_handler(signal.SIGTERM, lambda: simulator.terminate() and stopped.set())
    await stopped.wait()


def main() -> None:
    """Parse the command line and serve until SIGTERM."""
    options = _parse(sys.argv[1:])
    _die_with_parent()
    gc.freeze()  # the vocabulary never becomes garbage
    asyncio.run(_serve(options))


if __name__ == "__main__":
    main()
