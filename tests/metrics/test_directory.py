"""The files of several processes: who is dead, and what is kept of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from streaming.metrics import directory
from streaming.metrics.sockets import count_sockets

KEY = mmap_key("n", "n_total", ["kind"], ["a"], "help")


def write(place: Path, name: str, value: float) -> None:
    file = MmapedDict(str(place / name))
    file.write_value(KEY, value, 0.0)
    file.close()


def read(place: Path, name: str) -> dict[str, float]:
    values = MmapedDict.read_all_values_from_file(str(place / name))
    return {key: value for key, value, _, _ in values}


@pytest.fixture
def dead() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def alive() -> Iterator[int]:
    """The pid of a process that lives; it is a stranger to the directory."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate()


def test_counters_of_the_dead_are_kept_in_one_place(tmp_path: Path, dead: int) -> None:
    for kind in ("counter", "histogram"):
        write(tmp_path, f"{kind}_{directory.RETIRED}.db", 5)
        write(tmp_path, f"{kind}_{dead}.db", 2)
    write(tmp_path, f"gauge_livesum_{dead}.db", 1)
    write(tmp_path, f"gauge_livemostrecent_{dead}.db", 1)
    write(tmp_path, f"counter_{os.getpid()}.db", 3)
    for _ in range(2):
        with directory.locked(tmp_path) as is_ours:
            assert is_ours
            directory.bury_dead(tmp_path)
    assert {file.name for file in tmp_path.glob("*.db")} == {
        "counter_retired.db", "histogram_retired.db", f"counter_{os.getpid()}.db",
    }  # fmt: skip
    assert read(tmp_path, "counter_retired.db") == {KEY: 7}
    assert read(tmp_path, f"counter_{os.getpid()}.db") == {KEY: 3}


def test_a_stranger_with_the_pid_of_a_dead_process(tmp_path: Path, alive: int) -> None:
    write(tmp_path, f"gauge_livesum_{alive}.db", 1)
    directory.bury_dead(tmp_path)
    assert directory.pids(tmp_path) == {alive}
    os.utime(tmp_path / f"gauge_livesum_{alive}.db", (1e9, 1e9))  # written before it began
    directory.bury_dead(tmp_path)
    assert directory.pids(tmp_path) == set()


def test_whoever_holds_the_lock_for_long_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "LOCK_SECONDS", 0.05)
    with directory.locked(tmp_path) as first, directory.locked(tmp_path) as second:
        assert (first, second) == (True, False)
    with directory.locked(tmp_path) as again:
        assert again


def test_a_process_that_begins_has_no_gauges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pid may have been that of one that died."""
    place = tmp_path / "metrics"
    monkeypatch.setenv(directory.VARIABLE, str(place))
    directory.claim()
    write(place, f"gauge_livesum_{os.getpid()}.db", 9)
    write(place, f"counter_{os.getpid()}.db", 9)
    directory.claim()
    assert [file.name for file in place.iterdir()] == [f"counter_{os.getpid()}.db"]


def test_sockets_by_state(alive: int) -> None:
    before = count_sockets([os.getpid()])
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        now = count_sockets([os.getpid(), os.getpid(), alive, 2**22 + 1])
        assert now["listen"] == before["listen"] + 1
        assert now["established"] == before["established"] + 2
        ours.close()
        assert theirs.recv(1) == b""
        assert count_sockets([os.getpid()])["close_wait"] == before["close_wait"] + 1
        theirs.close()
    assert count_sockets([])["close_wait"] == 0
