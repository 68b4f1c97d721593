"""The examples of docs/embedding.md run as they stand there, and show what is stored."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.engine_simulator.process import SimulatorProcess
from tests.node.driver import HERE, SECONDS, install, run_node
from tests.stack import ROOT, Stack

_BLOCK = re.compile(r"^<!-- run -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STORED = """
SELECT string_agg(text, ''::bytea ORDER BY first_seq)
FROM streaming_tokencheckpoint
WHERE session_id = (SELECT id FROM streaming_streamsession ORDER BY created_at DESC LIMIT 1)
"""

_COUNT = "SELECT count(*) FROM streaming_streamsession"


@dataclass(frozen=True)
class Example:
    page: str
    line: int
    language: str
    source: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def examples(page: str) -> list[Example]:
    text = (ROOT / "docs" / page).read_text()
    return [
        Example(page, text.count("\n", 0, match.start()) + 2, match[1], match[2])
        for match in _BLOCK.finditer(text)
    ]


EXAMPLES = [*examples("embedding.md"), *examples("webhooks.md")]


@dataclass(frozen=True)
class Desk:
    """A gateway, and what examples find in their environment."""

    stack: Stack
    env: dict[str, str]


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    install()
    with (
        SimulatorProcess("vllm") as engine,
        Stack(engine_nodes=[f"a=vllm+{engine.url}"]) as stack,
    ):
        key = stack.api_key(on_disconnect="finish")
        stack.sql(
            "INSERT INTO streaming_modelalias (tenant_id, alias, model)"
            " SELECT id, 'chat-default', 'sim-model' FROM streaming_tenant"
        )
        url = stack.gateway().url
        minted = httpx.post(
            f"{url}/v1/embed-tokens",
            json={"user": "ann"},
            headers={"authorization": f"Bearer {key}"},
        )
        given = {
            "UNBROKEN_URL": url,
            "UNBROKEN_API_KEY": key,
            "UNBROKEN_TOKEN": minted.json()["token"],
        }
        yield Desk(stack, {**os.environ, **given})


def run(example: Example, env: dict[str, str], directory: Path) -> bytes:
    """What it has printed: answers may have line ends and NUL of their own. Raises ``AssertionError`` where it fails."""
    if example.language == "js":
        # Where the clients are found.
        path = HERE / "node_modules" / f".example-{example.line}.mjs"
        path.write_text(example.source)
        try:
            return run_node([str(path)], env)
        finally:
            path.unlink()
    path = directory / "example.py"
    path.write_text(example.source)
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**env, "PYTHONIOENCODING": "utf-8"}, capture_output=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example(example, desk, tmp_path):
    before = desk.stack.sql(_COUNT)
    said = run(example, desk.env, tmp_path)
    assert said.strip()
    if desk.stack.sql(_COUNT) != before:
        ((stored,),) = desk.stack.sql(_STORED)
        assert stored in said


def test_there_are_examples_for_both_languages():
    assert {one.language for one in EXAMPLES} == {"python", "js"}
