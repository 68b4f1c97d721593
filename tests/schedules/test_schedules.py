"""Random schedules of faults. The fixed seeds run always, the long run with ``make soak``:

SCHEDULES=1000 SCHEDULE_SEED=1 make soak ARGS=tests/schedules
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.schedules.schedule import run_schedule
from tests.schedules.world import World, world

SEEDS = range(1, 9)


@pytest.fixture(scope="module")
def the_world() -> Iterator[World]:
    with world() as one:
        yield one


@pytest.mark.parametrize("seed", SEEDS)
async def test_schedule(the_world: World, seed: int) -> None:
    await run_schedule(the_world, seed)


@pytest.mark.soak
async def test_many_schedules(the_world: World) -> None:
    """All of them run, whatever fails; then the failures are told."""
    first = int(os.environ.get("SCHEDULE_SEED", "1"))
    count = int(os.environ.get("SCHEDULES", "1000"))
    failures = []
    for seed in range(first, first + count):
        try:
            await run_schedule(the_world, seed)
        except AssertionError as exc:
            failures.append(str(exc))
            print(exc, flush=True)
    assert not failures, f"{len(failures)} of {count} failed:\n" + "\n".join(failures)
