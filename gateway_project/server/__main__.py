"""``python -m gateway_project.server``: one gateway process.

Prints ``READY <port>`` on stdout once it listens. SIGTERM and SIGINT end it politely (see
``GatewayServer``), a second one at once.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import resource
import signal
import sys
from typing import Any

# First: it decides which reactor Twisted uses.
from gateway_project.server import GatewayServer
from gateway_project.server.shares import Shares
from gateway_project.server.transport import adopted_socket, listening_socket

PR_SET_PDEATHSIG = 1


def main() -> int:
    options = _parser().parse_args()
    if options.die_with_parent:
        die_with_parent()
    raise_open_file_limit()
    try:
        listener = (
            listening_socket(options.host, options.port)
            if options.fd is None
            else adopted_socket(options.fd)
        )
    except OSError as exc:
        sys.stderr.write(f"cannot listen: {exc}\n")
        return 1

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway_project.settings")
    import django

    django.setup()
    from django.conf import settings

    from streaming.conf import conf

    end_tracing = None
    if settings.TRACES_ENDPOINT:
        from gateway_project import tracing

        end_tracing = tracing.begin()
    code = GatewayServer(
        imported(options.application),
        listener,
        start_runtime=imported(options.runtime) if options.runtime else None,
        shutdown_grace=conf().shutdown_grace,
        max_body_bytes=conf().max_body_bytes,
        trusted_proxies=settings.TRUSTED_PROXIES,
        request_seconds=options.request_seconds,
        vanished_seconds=conf().vanished_seconds,
        shares=_shares(options.shares) if options.shares else None,
    ).run()
    if end_tracing is not None:
        end_tracing()
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gateway_project.server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument(
        "--fd", type=int, help="an inherited listening socket, instead of host/port"
    )
    parser.add_argument(
        "--shares",
        metavar="FD:PLACE",
        help="memory in which the processes that share --fd count their connections, and our place",
    )
    parser.add_argument("--application", default="gateway_project.asgi:application")
    parser.add_argument(
        "--runtime",
        default="streaming.runtime.gateway:start",
        help="coroutine function that is awaited before listening; returns what drains and stops",
    )
    parser.add_argument(
        "--without-runtime",
        dest="runtime",
        action="store_const",
        const="",
        help="serve the application alone (tests)",
    )
    parser.add_argument(
        "--request-seconds", type=float, default=60.0, help="time for sending one whole request"
    )
    parser.add_argument(
        "--die-with-parent", action="store_true", help="stop when the parent process ends (Linux)"
    )
    return parser


def _shares(words: str) -> Shares:
    descriptor, _, place = words.partition(":")
    return Shares(int(descriptor), int(place))


def imported(path: str) -> Any:
    """The object that ``package.module:attribute`` names."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def die_with_parent() -> None:
    """Have the kernel send us SIGTERM when the thread that started us ends. Linux only.

    It is that *thread*, not its process: start servers from a thread that lives as long as they
    should.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        sys.exit(1)


def raise_open_file_limit() -> None:
    """A connection is a file; the usual soft limit of 1024 is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
