"""A short run with every fault there is: readers who come back notice nothing that they keep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.chaos import evidence, records
from bench.chaos.options import PRESETS, parse
from bench.chaos.schedule import KINDS
from bench.chaos.verdict import broken_promises
from tests.stack import ROOT


def test_all_faults_and_nobody_who_comes_back_is_interrupted(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "bench.chaos", "--preset", "smoke", "--directory", str(directory)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout[-4000:] + done.stderr[-4000:]
    assert done.returncode == 0, said
    assert broken_promises(directory) == []
    streams = list(records.streams(directory))
    assert len(streams) == PRESETS["smoke"]["streams"], said
    assert {fault.kind for fault in records.faults(directory)} == set(KINDS)
    protected = [one for one in streams if one.mode == "unbroken"]
    assert all(one.whole or one.left for one in protected)
    assert {(one.reader, one.transport) for one in protected} == {
        ("resuming", "sse"), ("resuming", "websocket"), ("acking", "sse"), ("acking", "websocket"),
    }  # fmt: skip
    assert any(one.cuts for one in protected)
    assert all(
        one.acked == one.tokens for one in protected if one.reader == "acking" and one.tokens
    )
    # The same faults do break what nothing protects, else they would show nothing.
    assert any(not one.whole for one in streams if one.mode == "unprotected")
    known = {one.session for one in evidence.sessions(directory)}
    assert {one.session for one in protected if one.session} <= known


def test_the_command_line_goes_over_the_preset() -> None:
    options = parse(["--preset", "smoke", "--streams", "7", "--seed", "9"])
    assert (options.streams, options.seed, options.each_once) == (7, 9, True)
    assert options.rate == PRESETS["smoke"]["rate"]


def test_the_scaled_run_says_its_scale() -> None:
    options = parse(["--preset", "five-minutes", "--scale", "20"])
    assert options.faults == "node_kill=4.0"
    assert options.down == (3.0, 3.0)
