"""Celery: whether a worker answers, whether beat asks for its tasks, and how they go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import redis
from django.conf import settings
from kombu.exceptions import KombuError

from gateway_project.celery import EVERY_SECONDS, app
from gateway_project.doctor.finding import Finding, failure, left_out, ok, warning
from gateway_project.doctor.postgres import is_reachable, unreachable
from gateway_project.doctor.redis_server import client
from streaming.runtime.sweepers import SILENT_SECONDS, SWEEP
from streaming.services.sql import rows

PING_SECONDS = 2.0
PATIENCE = 5
"""Intervals of a task that may pass before it counts as late; and a minute."""
LONG_QUEUE = 1000
DOC = "docs/operations.md"

_RUNS = """
SELECT name, extract(epoch FROM now() - started_at)::float8, error FROM streaming_taskrun
"""


@dataclass(frozen=True, slots=True)
class Run:
    """``age``: seconds since it began for the last time. ``error``: of its last end."""

    name: str
    age: float
    error: str


# --- reading ----------------------------------------------------------------------------------------


def look() -> Iterator[Finding]:
    if not settings.REDIS_URL:
        yield left_out("worker", "there is no REDIS_URL")
        return
    try:
        with client() as connection:
            queue: int | None = connection.llen(settings.CELERY_TASK_DEFAULT_QUEUE)
        workers = sorted({name for reply in _ping() for name in reply})
    except (redis.RedisError, KombuError, OSError):
        yield left_out("worker", "Redis does not answer")
        queue, workers = None, []
    else:
        yield judge_workers(workers)
        yield judge_queue(queue or 0)
    if not is_reachable():
        yield unreachable("beat")
        return
    runs = [Run(*row) for row in rows(_RUNS)]
    yield judge_beat({run.name: run for run in runs}, queue, has_worker=bool(workers))
    yield from judge_runs(runs, EVERY_SECONDS)


def _ping() -> list[dict[str, object]]:
    with app.connection_for_write(connect_timeout=PING_SECONDS) as connection:
        connection.ensure_connection(max_retries=1, timeout=PING_SECONDS)
        return app.control.ping(timeout=PING_SECONDS, connection=connection) or []


# --- judging ----------------------------------------------------------------------------------------


def judge_workers(workers: Sequence[str]) -> Finding:
    if not workers:
        return failure(
            "worker",
            f"none answers within {PING_SECONDS:g} s",
            "`celery -A gateway_project worker`; without one nothing is explained, purged, delivered or billed in time.",
            DOC,
        )
    return ok("worker", ", ".join(workers))


def judge_queue(length: int) -> Finding:
    seen = f"{length} tasks wait"
    if length > LONG_QUEUE:
        return warning("queue", seen, "More workers, or see what the one there is does.", DOC)
    return ok("queue", seen)


def judge_beat(runs: Mapping[str, Run], queue: int | None, *, has_worker: bool) -> Finding:
    """By the sweep that it asks for every 2 s. ``queue``: None where it can't be counted."""
    sweep = runs.get(SWEEP)
    if sweep is not None and sweep.age < SILENT_SECONDS:
        return ok("beat", f"its last sweep began {sweep.age:.0f} s ago")
    seen = (
        "no sweep was ever begun"
        if sweep is None
        else f"its last sweep began {sweep.age:.0f} s ago"
    )
    if has_worker and queue == 0:
        return failure(
            "beat",
            f"{seen}, and the queue is empty: beat asks for nothing",
            "`celery -A gateway_project beat`, exactly one.",
            DOC,
        )
    return failure("beat", seen, "Start the worker and one beat; see their logs.", DOC)


def judge_runs(runs: Sequence[Run], every: Mapping[str, float]) -> Iterator[Finding]:
    """``every``: the seconds at which each task is asked for."""
    broken = [run for run in runs if run.error]
    for run in broken:
        yield warning("tasks", f"{run.name} has failed: {run.error}", "See the worker's log.", DOC)
    late = [
        run for run in runs
        if run.name in every and run.name != SWEEP and run.age > PATIENCE * every[run.name] + SILENT_SECONDS
    ]  # fmt: skip
    for run in late:
        yield warning(
            "tasks",
            f"{run.name} has not run for {run.age:.0f} s; it is asked for every {every[run.name]:g} s",
            "See the worker's log and the length of its queue.",
            DOC,
        )
    if runs and not broken and not late:
        yield ok("tasks", f"{len(runs)} have run lately, none has failed")
