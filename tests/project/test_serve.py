"""``manage.py serve`` as a real process: what it starts, keeps alive, stops and leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from gateway_project.supervisor.state import find_process, read_state

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 40.0
SETTLE_SECONDS = 20.0


class Serve:
    """A ``serve`` process, its output in a file."""

    def __init__(self, data_dir: Path, *arguments: str, embedded: bool = True) -> None:
        self.data_dir = data_dir
        self.output_path = data_dir.with_suffix(".out")
        own = ("DATABASE_URL", "DATABASE_DIRECT_URL", "REDIS_URL") if embedded else ()
        self.env = {key: value for key, value in os.environ.items() if key not in own}
        self.env["DATA_DIR"] = str(data_dir)
        self.env["DJANGO_SETTINGS_MODULE"] = "gateway_project.settings"
        with self.output_path.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "serve", "--port", "0", *arguments],
                cwd=ROOT,
                env=self.env,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )

    @property
    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    @property
    def state(self) -> dict:
        state = read_state(self.data_dir)
        assert state is not None, self.output
        return state

    def wait_until_ready(self) -> Serve:
        def ready() -> bool:
            assert self.process.poll() is None, self.output
            return "\nready " in self.output

        until(ready, seconds=START_SECONDS, words=lambda: self.output)
        return self

    def child(self, name: str) -> dict:
        return self.state["children"][name]

    def answers(self) -> bool:
        try:
            response = httpx.get(self.state["url"] + "/admin/login/", timeout=2)
        except httpx.TransportError:
            return False
        return response.status_code == 200

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )


def until(condition, *, seconds: float = SETTLE_SECONDS, words=lambda: "") -> None:
    """Poll ``condition`` until it is true; fail with ``words()``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, words()
        time.sleep(0.02)


@contextmanager
def serving(
    *arguments: str, data_dir: Path | None = None, embedded: bool = True
) -> Iterator[Serve]:
    """A running ``serve``; whatever is left of it at the end is killed."""
    with tempfile.TemporaryDirectory(prefix="unbroken-serve-") as directory:
        serve = Serve(data_dir or Path(directory) / "data", *arguments, embedded=embedded)
        try:
            yield serve.wait_until_ready()
        finally:
            if serve.process.poll() is None:
                serve.process.send_signal(signal.SIGTERM)
                serve.process.wait(SETTLE_SECONDS)


@pytest.fixture(scope="module")
def stack() -> Iterator[Serve]:
    with serving("--processes", "2", "--demo-nodes", "1") as serve:
        yield serve


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="unbroken-serve-") as path:
        yield Path(path)


def test_every_part_is_announced_and_written_down(stack):
    assert stack.answers()
    assert set(stack.state["children"]) == {
        "postgres", "redis", "node-a", "worker", "beat", "gateway-1", "gateway-2",
    }  # fmt: skip
    for name in stack.state["children"]:
        assert f"\n{name} " in "\n" + stack.output
    assert stack.state["engine_nodes"] == [
        f"node-a=llamacpp+http://127.0.0.1:{stack.child('node-a')['port']}"
    ]
    assert (stack.data_dir / "run" / "services.json").stat().st_mode & 0o777 == 0o600


def test_a_second_terminal_finds_the_database(stack):
    done = stack.manage("showmigrations", "auth")
    assert done.returncode == 0, done.stderr
    assert "[X] 0001_initial" in done.stdout


def test_a_second_serve_on_the_same_data_is_refused(stack):
    done = stack.manage("serve", "--port", "0")
    assert done.returncode != 0
    assert f"pid {stack.process.pid} already runs on" in done.stderr
    assert stack.answers()


@pytest.mark.parametrize("name", ["node-a", "gateway-1", "worker", "redis", "postgres"])
def test_what_dies_is_started_again_at_the_same_place(stack, name):
    before = stack.child(name)
    announced = stack.output.count(f"\n{name} ")
    os.kill(before["pid"], signal.SIGKILL)
    # Its end, and its new start.
    until(lambda: stack.output.count(f"\n{name} ") >= announced + 2, words=lambda: stack.output)
    after = stack.child(name)
    assert after["pid"] != before["pid"]
    assert after["port"] == before["port"]
    assert "SIGKILL" in stack.output
    until(stack.answers, words=lambda: stack.output)
    if name == "node-a":
        models = httpx.get(f"http://127.0.0.1:{after['port']}/v1/models").json()
        assert models["data"][0]["id"] == "smollm2-135m-instruct"


def test_another_stack_runs_beside_it_on_services_of_its_own_choice(stack):
    with serving(embedded=False) as other:
        assert other.answers()
        assert stack.answers()
        assert set(other.state["children"]) == {"worker", "beat", "gateway-1"}
        assert other.state["database_url"] == os.environ["DATABASE_URL"]


def test_a_second_ctrl_c_does_not_wait_for_the_grace():
    with serving(embedded=False) as serve:
        gateway = serve.child("gateway-1")
        os.kill(gateway["pid"], signal.SIGSTOP)  # as if it had streams to finish
        serve.process.send_signal(signal.SIGINT)
        until(lambda: "\nstopping " in serve.output)
        with pytest.raises(subprocess.TimeoutExpired):
            serve.process.wait(0.5)
        serve.process.send_signal(signal.SIGINT)
        assert serve.process.wait(10) == 0
        assert find_process(gateway) is None


def test_a_killed_supervisor_leaves_nothing_that_the_next_start_minds(directory):
    data = directory / "data"
    with serving(data_dir=data) as first:
        children = first.state["children"]
        frozen = psutil.Process(children["gateway-1"]["pid"])
        frozen.suspend()  # can't obey the kernel's SIGTERM
        first.process.kill()
        first.process.wait()
        others = [child for name, child in children.items() if name != "gateway-1"]
    try:
        until(lambda: not any(find_process(child) for child in others))
        assert frozen.is_running()
        with serving(data_dir=data) as second:
            assert second.answers()
            assert not frozen.is_running()
            assert "left behind by an earlier run" in second.output
            descendants = psutil.Process(second.process.pid).children(recursive=True)
            assert len(descendants) >= len(second.state["children"])
            second.process.terminate()
            assert second.process.wait(SETTLE_SECONDS) == 0
            assert not [process for process in descendants if process.is_running()]
            assert not (data / "run" / "services.json").exists()
    finally:
        if frozen.is_running():
            frozen.kill()


def test_a_stranger_with_an_old_pid_is_left_alone(directory):
    data = directory / "data"
    (data / "run").mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        identity = {"pid": stranger.pid, "created": psutil.Process(stranger.pid).create_time() - 60}
        state = {"supervisor": identity, "children": {"gateway-1": identity}}
        (data / "run" / "services.json").write_text(json.dumps(state))
        with serving(data_dir=data, embedded=False):
            assert stranger.poll() is None
        stranger.kill()


def test_an_address_in_use_ends_it_with_a_reason(stack, directory):
    port = stack.state["url"].rsplit(":", 1)[1]
    done = Serve(directory / "data", "--port", port, embedded=False)
    assert done.process.wait(SETTLE_SECONDS) != 0
    assert "cannot listen on 127.0.0.1:" + port in done.output
