"""``manage.py doctor`` in real deployments: a good one, and ones in which parts are wrong or down."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.engine_simulator.process import SimulatorProcess
from tests.stack import ROOT, Stack
from tests.tasks.test_celery import beat, rows_until, worker

NOWHERE = "127.0.0.1:9"
OF_TESTS = {"fsync", "full_page_writes"}
"""What the tests' own PostgreSQL leaves out."""


def doctor(
    env: dict[str, str], *arguments: str, files: int | None = None
) -> tuple[int, dict[str, Any], str]:
    """Exit code, what it found, and all that it has written."""

    def limit() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    done = subprocess.run(
        [sys.executable, "manage.py", "doctor", "--json", *arguments],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False, preexec_fn=limit,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stdout + done.stderr


def failures(told: dict[str, Any], *subjects: str) -> set[str]:
    return {
        one["check"] for one in told["findings"]
        if one["level"] == "failure" and (not subjects or one["subject"] in subjects)
    }  # fmt: skip


def seen(told: dict[str, Any], check: str) -> str:
    return " ".join(one["seen"] for one in told["findings"] if one["check"] == check)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with ExitStack() as ends:
        engines = [ends.enter_context(SimulatorProcess("vllm", scale_out=True)) for _ in "ab"]
        names = [f"{n}=vllm+{one.url}" for n, one in zip("ab", engines, strict=True)]
        yield ends.enter_context(Stack(gateways=2, engine_nodes=names))


async def test_a_good_deployment(stack: Stack) -> None:
    key = stack.api_key()
    tokens = "scrape-me-77-and-on, the-one-before-it"  # several are accepted: one has to be sent
    gateway = stack.start_gateway(METRICS_TOKEN=tokens)
    arguments = ("--url", gateway.url, "--patience", "1")
    with worker(stack), beat(stack):
        await rows_until(stack, "SELECT 1 FROM streaming_taskrun WHERE name = 'reclaim_kv_cache'")
        code, told, text = doctor(stack.env(UNBROKEN_API_KEY=key, METRICS_TOKEN=tokens), *arguments)
    everything = ("settings", "database", "redis", "tasks", "gateways", "nodes", "address", "path")
    # On a busy machine events come late without anybody holding them.
    assert failures(told, *everything) - {"buffering"} == OF_TESTS
    assert {one["subject"] for one in told["findings"]} == {"machine", *everything}
    assert code == 1
    assert "waits for 0." in seen(told, "journal")
    for secret in (
        key,
        "scrape-me-77-and-on",
        "the-one-before-it",
        stack.env()["SECRET_KEY"],
        stack.redis_url.split("@")[0].split(":")[-1],
    ):
        assert secret not in text


def test_a_bad_database(stack: Stack) -> None:
    name = f'"{stack.database}"'
    stack.sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    stack.sql(f"ALTER DATABASE {name} SET statement_timeout = '5s'")
    stack.sql("ALTER TABLE billing_ledgerentry DISABLE TRIGGER append_only")
    ((day,),) = stack.sql(
        "SELECT min(relname) FROM pg_class WHERE relname ~ '^checkpoints_[0-9]+$'"
    )
    stack.sql(f"DROP TABLE {day}")
    try:
        _, told, _ = doctor(stack.env(), "--only", "database")
        assert failures(told) == {*OF_TESTS, "synchronous_commit", "guards"}
        assert "append_only of billing_ledgerentry" in seen(told, "guards")
        assert day in seen(told, "partitions")
        assert "5s" in seen(told, "statement_timeout")
        stack.sql("DELETE FROM django_migrations WHERE app = 'billing' AND name LIKE '0003%%'")
        _, told, _ = doctor(stack.env(), "--only", "database")
        assert "billing.0003" in seen(told, "migrations")
    finally:
        stack.sql(f"ALTER DATABASE {name} RESET ALL")


def test_everything_down(stack: Stack) -> None:
    env = stack.env(
        DATABASE_URL=f"postgresql://unbroken:pass-word-1@{NOWHERE}/x",
        DATABASE_DIRECT_URL=f"postgresql://unbroken:pass-word-1@{NOWHERE}/x",
        REDIS_URL=f"redis://:pass-word-2@{NOWHERE}/0",
        ENGINE_NODES=f"a=vllm+http://{NOWHERE}",
        SHUTDOWN_GRASE="5",
    )
    code, told, text = doctor(env, "--url", f"http://{NOWHERE}", files=1024)
    assert code == 1
    assert failures(told, "machine") == {"descriptors"}
    for subject, check in (
        ("database", "reachable"), ("redis", "reachable"), ("nodes", "a"), ("address", "reachable"),
    ):  # fmt: skip
        assert check in failures(told, subject)
    assert "itself failed" not in text
    assert "SHUTDOWN_GRACE" in seen(told, "environment")
    assert "pass-word" not in text
    assert "UNBROKEN_API_KEY" in text  # what was left out without a key


def test_nodes_that_are_not_alike(stack: Stack) -> None:
    with (
        SimulatorProcess("vllm") as one,
        SimulatorProcess("vllm", template="llama3", max_model_len=4096) as other,
        SimulatorProcess("vllm", text_only=True, model="old-model") as old,
        SimulatorProcess("vllm", api_key="engine-key-1") as locked,
        SimulatorProcess("vllm", model="other-model") as hasty,
    ):
        nodes = (
            f"one=vllm+{one.url},other=vllm+{other.url},old=vllm+{old.url},"
            f"locked=vllm+{locked.url}?credential=env:NO_SUCH_VARIABLE,"
            f"hasty=vllm+{hasty.url}?priority=on"
        )
        # Without a database the nodes of the environment are asked.
        env = stack.env(DATABASE_URL=f"postgresql://u@{NOWHERE}/x", ENGINE_NODES=nodes)
        code, told, _ = doctor(env, "--only", "nodes")
    assert code == 1
    assert failures(told) == {"sim-model", "old", "locked", "hasty"}
    assert "one | other" in seen(told, "sim-model")
    assert "4096 and 8192" in seen(told, "sim-model")
    assert "NO_SUCH_VARIABLE" in seen(told, "locked")
    assert "priority=on" in seen(told, "hasty")


def test_text_strictness_and_refused_arguments(stack: Stack) -> None:
    plain = stack.manage("doctor", "--only", "redis")
    assert "\x1b[" not in plain
    assert "Redis" in plain
    warned = stack.env(SHUTDOWN_GRACE="1")
    assert doctor(warned, "--only", "settings")[0] == 0
    assert doctor(warned, "--only", "settings", "--strict")[0] == 1
    done = subprocess.run(
        [sys.executable, "manage.py", "doctor", "--url", "gateway.example"],
        cwd=ROOT, env=stack.env(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "https://gateway.example" in done.stderr
