"""How many TCP sockets a process has in each state, as the kernel tells (Linux).

A socket that stays in CLOSE_WAIT is one that we have forgotten to close.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

STATES = {
    "01": "established",
    "02": "syn_sent",
    "03": "syn_recv",
    "04": "fin_wait1",
    "05": "fin_wait2",
    "06": "time_wait",
    "07": "close",
    "08": "close_wait",
    "09": "last_ack",
    "0A": "listen",
    "0B": "closing",
}
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
SUMMARY = Path("/proc/net/sockstat")


def time_wait_sockets() -> int | None:
    """Closed sockets of this machine (or container) that still hold their ports; None: nobody tells.

    They belong to no process, so the tables of processes do not show them.
    """
    try:
        lines = SUMMARY.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, *fields = line.split() or [""]
        if name == "TCP:" and "tw" in fields[::2]:
            return int(fields[fields.index("tw") + 1])
    return None


def count_sockets(pids: Iterable[int]) -> Counter[str]:
    """The states of the sockets that these processes have open, all of them named.

    A listening socket that several share counts once. Closed sockets (TIME_WAIT) belong to nobody.
    Processes that have ended, or are not ours to look into, are passed over.
    """
    inodes: set[str] = set()
    for pid in pids:
        inodes |= _inodes(pid)
    states: Counter[str] = Counter(dict.fromkeys(STATES.values(), 0))
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except FileNotFoundError:  # not Linux, or no IPv6
            continue
        for line in lines:
            fields = line.split(maxsplit=10)
            if fields[9] in inodes:
                states[STATES.get(fields[3], "other")] += 1
    return states


def _inodes(pid: int) -> set[str]:
    found: set[str] = set()
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(f"{directory}/{name}")
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found
