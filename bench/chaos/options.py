"""What a run may be told, and the runs that have a name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from bench.chaos.records import Mode, ReaderKind, Transport
from bench.chaos.schedule import KINDS

READERS = ("plain/sse", "resuming/sse", "resuming/websocket", "acking/sse", "acking/websocket")
COMING_BACK = ",".join(READERS[1:])
ALL_FAULTS = (
    "node_kill=4,node_stop=2,node_freeze=1,node_reset=3,node_slow=2,"
    "gateway_kill=2,redis_restart=1,postgres_restart=0.5"
)
FIVE_MINUTES = 300.0
"""Seconds between two deaths in the run of that name, before it is scaled."""
RESTART_SECONDS = 60.0
"""How long an engine takes to load its model, before it is scaled."""
PRESETS: dict[str, dict[str, Any]] = {
    # Every kind of fault within 20 s: shows that all of it works, and measures little.
    "smoke": {
        "streams": 140, "rate": 7.0, "tokens": 40, "nodes": 3, "faults": ALL_FAULTS, "each_once": True,
        "readers": COMING_BACK, "modes": "unbroken,unbroken,unbroken,unprotected,unstreamed",
        "cut": 0.3, "leave": 0.05, "proxied": 0.25, "proxy_seconds": 2.0, "recovery": 1.0,
        "patience": 120.0,
    },
    # Engines fail under clients that know nothing of sessions.
    "nodes": {
        "streams": 1000, "rate": 8.0, "tokens": 60, "nodes": 3, "readers": "plain/sse",
        "modes": "unbroken,unbroken,unprotected,unstreamed",
        "faults": "node_kill=6,node_stop=2,node_freeze=1,node_reset=4,node_slow=2",
    },
    # Everything fails, and readers come back.
    "full": {
        "streams": 1000, "rate": 6.0, "tokens": 60, "nodes": 3, "readers": COMING_BACK,
        "faults": ALL_FAULTS, "each_once": True, "cut": 0.2, "leave": 0.05, "proxied": 0.15,
        "proxy_seconds": 3.0,
    },
    # One node dies every five minutes; all times are divided by the scale.
    "five-minutes": {
        "streams": 2000, "rate": 8.0, "tokens": 60, "nodes": 3, "readers": "plain/sse,resuming/sse",
        "modes": "unbroken,unbroken,unprotected,unstreamed", "scale": 10.0, "regular": True,
    },
    # As many short answers as go through, while nodes die.
    "bound": {
        "streams": 300_000, "rate": 80.0, "tokens": 8, "pace": 40.0, "nodes": 3, "minutes": 10.0,
        "readers": "plain/sse", "faults": "node_kill=12", "regular": True,
    },
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    chosen = argparse.ArgumentParser(
        prog="python -m bench.chaos",
        description="Readers of real streams while nodes, gateways, Redis and PostgreSQL are killed.",
    )
    add = chosen.add_argument
    add("--preset", choices=PRESETS, help="options that belong together; any can be said besides")
    add("--cluster", choices=("simulator", "llamacpp", "given"), default="simulator")
    add(
        "--given", type=Path, metavar="TOML", help="of --cluster given: where it is, how to hurt it"
    )
    add("--seed", type=int, default=1)
    add("--streams", type=int, default=400, help="in all")
    add("--rate", type=float, default=8.0, help="streams that begin in a second, come what may")
    add("--minutes", type=float, default=0.0, help="after this long none begins any more")
    add("--tokens", type=int, default=60, help="of an answer on average")
    add("--pace", type=float, default=20.0, help="tokens a second of simulated engines")
    add("--nodes", type=int, default=3)
    add("--gateways", type=int, default=2)
    add("--modes", default="unbroken", help=f"in turn, of {', '.join(get_args(Mode))}")
    add("--readers", default=COMING_BACK, help=f"in turn, of {', '.join(READERS)}")
    add(
        "--faults",
        default="node_kill=4",
        metavar="KIND=PER_MINUTE,…",
        help=f"of {', '.join(KINDS)}",
    )
    add("--regular", action="store_true", help="faults come once in each period, not by chance")
    add("--each-once", action="store_true", help="each kind at least once, however short the run")
    add("--all-at-once", action="store_true", help="faults may leave no node at all")
    add("--recovery", type=float, default=3.0, help="seconds before a node counts as back")
    add(
        "--scale",
        type=float,
        default=0.0,
        help="one node dies every 5 minutes divided by this, and is away for 1 minute divided by it",
    )
    add("--cut", type=float, default=0.0, help="share of readers whose connections are cut")
    add("--leave", type=float, default=0.0, help="share of readers who go away for good")
    add("--proxied", type=float, default=0.0, help="share of readers behind the proxy that cuts")
    add("--proxy-seconds", type=float, default=30.0, help="age at which it cuts")
    add("--silence", type=float, default=20.0, help="seconds without a byte: a dead connection")
    add("--patience", type=float, default=60.0, help="seconds without a token: a lost answer")
    add(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the gateways"
    )
    add("--directory", type=Path, help="where the run is kept (default: bench/results/chaos/…)")
    return chosen  # fmt: skip


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The preset's values stand where the command line says nothing. Exits with what is wrong."""
    chosen = parser()
    preset = chosen.parse_args(arguments).preset
    if preset:
        chosen.set_defaults(**PRESETS[preset])
    options = chosen.parse_args(arguments)
    if options.scale:
        options.faults = f"node_kill={60 * options.scale / FIVE_MINUTES}"
        options.down = (RESTART_SECONDS / options.scale,) * 2
    else:
        options.down = None
    if unknown := set(options.modes.split(",")) - set(get_args(Mode)):
        chosen.error(f"no such modes: {', '.join(unknown)}")
    if unknown := set(options.readers.split(",")) - set(READERS):
        chosen.error(f"no such readers: {', '.join(unknown)}")
    if unknown := {fault.partition("=")[0] for fault in options.faults.split(",")} - set(KINDS):
        chosen.error(f"no such faults: {', '.join(unknown)}")
    if options.cluster == "given" and options.given is None:
        chosen.error("--cluster given needs --given TOML")
    return options


def readers_of(text: str) -> list[tuple[ReaderKind, Transport]]:
    """``acking/sse,…`` as pairs."""
    pairs = [reader.partition("/") for reader in text.split(",")]
    return [(kind, transport) for kind, _, transport in pairs]  # type: ignore[misc]
