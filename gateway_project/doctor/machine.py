"""The machine and the container: what the kernel lets a gateway have."""

from __future__ import annotations

import ctypes
import re
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from django.conf import settings

from gateway_project.doctor.finding import Finding, failure, left_out, note, ok, warning

FILES = 65_535
BACKLOG = 32_768
FEWEST_PORTS = 28_000
"""Fewer local ports than Linux has by default leave fewer connections to each engine."""
TIME_WAIT_MOST = 28_000
FIN_TIMEOUT = 30
MEMORY_LEAST = 1 << 30
DISK_SHARE, DISK_LEAST = 0.1, 5 << 30
NEARLY_FULL = 0.9
TIME_ERROR = 5  # what adjtimex() returns of a clock that nobody keeps
DOC = "deploy/sysctl.conf"


@dataclass(frozen=True, slots=True)
class Process:
    """A gateway process of this machine: its open descriptors, and how many it may have."""

    pid: int
    files: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """None: the kernel does not say (no Linux, or hidden from a container)."""

    somaxconn: int | None = None
    tw_reuse: int | None = None
    fin_timeout: int | None = None
    ports: tuple[int, int] | None = None
    time_wait: int | None = None
    entropy: int | None = None
    clock_kept: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Limits of the control group, in bytes and processes; None: none, or not told."""

    memory_limit: int | None = None
    memory_used: int | None = None
    oom_kills: int = 0
    pids_limit: int | None = None
    pids_used: int | None = None
    cpus: float | None = None


# --- reading ----------------------------------------------------------------------------------------


def look() -> Iterator[Finding]:
    """Everything about this machine."""
    yield from judge_files(*resource.getrlimit(resource.RLIMIT_NOFILE), gateway_processes())
    yield from judge_kernel(read_kernel())
    memory = psutil.virtual_memory()
    yield judge_memory(memory.total, memory.available)
    yield from judge_container(read_container())
    place = next(p for p in (settings.DATA_DIR, *settings.DATA_DIR.parents) if p.exists())
    disk = shutil.disk_usage(place)
    yield judge_disk(disk.total, disk.free)


def gateway_processes() -> list[Process]:
    """Those that this account may look into."""
    found = []
    for process in psutil.process_iter():
        try:
            if "gateway_project.server" in process.cmdline():
                soft, _ = process.rlimit(psutil.RLIMIT_NOFILE)
                found.append(Process(process.pid, process.num_fds(), soft))
        except psutil.Error:
            continue  # gone meanwhile, or another account's
    return found


def read_kernel(root: Path = Path("/proc")) -> Kernel:
    net = root / "sys/net"
    ports = _numbers(net / "ipv4/ip_local_port_range")
    sockets = re.search(r"^TCP:.* tw (\d+)", _text(root / "net/sockstat"), re.MULTILINE)
    return Kernel(
        somaxconn=_number(net / "core/somaxconn"),
        tw_reuse=_number(net / "ipv4/tcp_tw_reuse"),
        fin_timeout=_number(net / "ipv4/tcp_fin_timeout"),
        ports=(ports[0], ports[1]) if len(ports) == 2 else None,
        time_wait=int(sockets[1]) if sockets else None,
        entropy=_number(root / "sys/kernel/random/entropy_avail"),
        clock_kept=_clock_is_kept(),
    )


def read_container(root: Path = Path("/sys/fs/cgroup")) -> Container:
    """Of version 2, as it looks from inside a container; of version 1 memory alone."""
    kills = re.search(r"^oom_kill (\d+)", _text(root / "memory.events"), re.MULTILINE)
    quota = _text(root / "cpu.max").split()
    old_limit = _number(root / "memory/memory.limit_in_bytes")
    if old_limit is not None and old_limit >= 1 << 60:  # version 1's word for none
        old_limit = None
    return Container(
        memory_limit=_number(root / "memory.max") or old_limit,
        memory_used=_number(root / "memory.current"),
        oom_kills=int(kills[1]) if kills else 0,
        pids_limit=_number(root / "pids.max"),
        pids_used=_number(root / "pids.current"),
        cpus=int(quota[0]) / int(quota[1]) if len(quota) == 2 and quota[0] != "max" else None,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _numbers(path: Path) -> list[int]:
    return [int(word) for word in _text(path).split() if word.isdecimal()]


def _number(path: Path) -> int | None:
    return next(iter(_numbers(path)), None)


def _clock_is_kept() -> bool | None:
    """Whether something keeps the clock; None where the C library can't be asked."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is None:
        return None
    state = adjtimex(ctypes.create_string_buffer(512))  # modes 0: it changes nothing
    return None if state < 0 else state != TIME_ERROR


# --- judging ----------------------------------------------------------------------------------------


def judge_files(soft: int, hard: int, gateways: list[Process]) -> Iterator[Finding]:
    """A connection is a descriptor. Gateways raise their own soft limit to the hard one."""
    seen = f"{_limit(soft)} descriptors, at most {_limit(hard)}"
    if 0 <= hard < FILES:
        yield failure(
            "descriptors",
            f"{seen}; {FILES} are wanted",
            f"LimitNOFILE={FILES} in the systemd unit, `nofile` in limits.conf, or --ulimit of the container.",
            "deploy/limits.conf",
        )
    elif 0 <= soft < FILES:
        yield note(
            "descriptors",
            seen,
            "Gateways raise their own; a proxy or an engine started here would not.",
        )
    else:
        yield ok("descriptors", seen)
    if gateways:
        yield _judge_in_use(gateways)


def _judge_in_use(gateways: list[Process]) -> Finding:
    """Of several processes, the one that is nearest to its limit."""
    fullest = max(gateways, key=lambda one: one.files / one.limit if one.limit > 0 else 0.0)
    seen = (
        f"{len(gateways)} gateway processes run here; of process {fullest.pid} {fullest.files} "
        f"of {_limit(fullest.limit)} are open"
    )
    if fullest.limit > 0 and fullest.files > fullest.limit * NEARLY_FULL:
        return failure("descriptors in use", seen, "More gateway processes, or a higher limit.")
    if 0 < min(one.limit for one in gateways) < FILES:
        return warning("descriptors in use", seen, f"Start them with a limit of {FILES}.")
    return ok("descriptors in use", seen)


def judge_kernel(kernel: Kernel) -> Iterator[Finding]:
    """What the network of many short and long connections asks of the kernel."""
    if kernel.somaxconn is None:
        yield left_out("kernel", "this system has no /proc/sys/net")
        return
    if kernel.somaxconn < BACKLOG:
        yield warning(
            "somaxconn",
            f"{kernel.somaxconn} connections may wait to be accepted; {BACKLOG} are wanted",
            f"sysctl net.core.somaxconn={BACKLOG}: when readers come back all at once, the rest is refused.",
            DOC,
        )
    else:
        yield ok("somaxconn", f"{kernel.somaxconn} connections may wait to be accepted")
    if kernel.tw_reuse is not None:
        yield (
            ok("tcp_tw_reuse", "closed ports are used again")
            if kernel.tw_reuse == 1
            else warning(
                "tcp_tw_reuse",
                f"is {kernel.tw_reuse}: ports of closed connections wait for a minute"
                + (", but on loopback" if kernel.tw_reuse == 2 else ""),
                "sysctl net.ipv4.tcp_tw_reuse=1",
                DOC,
            )
        )
    if kernel.fin_timeout is not None:
        yield (
            ok("tcp_fin_timeout", f"{kernel.fin_timeout} s")
            if kernel.fin_timeout <= FIN_TIMEOUT
            else warning(
                "tcp_fin_timeout",
                f"half-closed connections are kept for {kernel.fin_timeout} s",
                f"sysctl net.ipv4.tcp_fin_timeout={FIN_TIMEOUT}",
                DOC,
            )
        )
    yield from _judge_ports(kernel)
    if kernel.entropy is not None and kernel.entropy < 128:
        yield warning(
            "entropy",
            f"{kernel.entropy} bits: new keys may have to wait",
            "Install rng-tools or haveged.",
        )
    if kernel.clock_kept is not None:
        yield (
            ok("clock", "is kept by a time service")
            if kernel.clock_kept
            else note(
                "clock",
                "the kernel calls it not synchronised",
                "Run chrony or systemd-timesyncd on the host; the comparisons with other clocks tell how far it is off.",
            )
        )


def _judge_ports(kernel: Kernel) -> Iterator[Finding]:
    count = None
    if kernel.ports is not None:
        low, high = kernel.ports
        count = high - low + 1
        yield (
            ok("local ports", f"{low} to {high}")
            if count >= FEWEST_PORTS
            else warning(
                "local ports",
                f"{low} to {high}: {count} connections to one address at most",
                "sysctl net.ipv4.ip_local_port_range='10240 65535'",
                DOC,
            )
        )
    if kernel.time_wait is not None:
        most = min(TIME_WAIT_MOST, count * NEARLY_FULL if count else TIME_WAIT_MOST)
        seen = f"{kernel.time_wait} connections in TIME_WAIT"
        yield (
            ok("TIME_WAIT", seen)
            if kernel.time_wait <= most
            else warning(
                "TIME_WAIT",
                f"{seen}: local ports run out",
                "Have the proxy keep its connections to the gateway (HTTP/1.1, `Connection ''`), and see tcp_tw_reuse.",
                DOC,
            )
        )


def judge_memory(total: int, available: int) -> Finding:
    seen = f"{_size(available)} of {_size(total)} are free"
    if available < total * (1 - NEARLY_FULL):
        return warning("memory", seen, "Less beside the gateway, fewer processes, or more memory.")
    return ok("memory", seen)


def judge_container(container: Container) -> Iterator[Finding]:
    limit, used = container.memory_limit, container.memory_used
    if limit is not None:
        seen = f"{_size(used or 0)} of the container's {_size(limit)} are in use"
        if limit < MEMORY_LEAST:
            yield warning(
                "container memory",
                seen,
                "1 GB and more: a gateway that is killed takes its streams along.",
            )
        elif used is not None and used > limit * NEARLY_FULL:
            yield warning("container memory", seen, "Raise the limit, or lower MAX_STREAMS.")
        else:
            yield ok("container memory", seen)
    if container.oom_kills:
        yield failure(
            "container memory",
            f"the kernel has killed {container.oom_kills} processes here for want of memory",
            "Raise the container's memory limit, or lower MAX_STREAMS.",
        )
    if container.pids_limit is not None and container.pids_used is not None:
        seen = f"{container.pids_used} of {container.pids_limit} processes and threads"
        yield (
            ok("container processes", seen)
            if container.pids_used < container.pids_limit * NEARLY_FULL
            else warning("container processes", seen, "Raise --pids-limit.")
        )
    if container.cpus is not None:
        seen = f"{container.cpus:g} processors"
        yield (
            ok("container processors", seen)
            if container.cpus >= 1
            else warning(
                "container processors",
                f"{seen}: a throttled process stops for tens of milliseconds at a time",
                "Ask for at least one whole processor for each gateway process, or set no limit.",
            )
        )


def judge_disk(total: int, free: int) -> Finding:
    """Of DATA_DIR: secrets, exports, and the embedded servers' files."""
    seen = f"{_size(free)} of {_size(total)} are free where DATA_DIR is"
    if free < min(total * DISK_SHARE, DISK_LEAST):
        return warning("disk", seen, "Make room: exports and the embedded PostgreSQL write there.")
    return ok("disk", seen)


def _limit(number: int) -> str:
    return "unlimited" if number < 0 else str(number)


def _size(size: float) -> str:
    return f"{size / (1 << 30):.1f} GB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MB"
