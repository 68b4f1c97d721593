"""Fixtures for all tests. The services themselves start in ``tests.settings``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.stack import Stack

failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Remember on the item whether its test failed: fixtures ask at their end."""
    report = yield
    if report.when == "call":
        item.stash[failed] = report.failed
    return report


@pytest.fixture
def start_stack(request: pytest.FixtureRequest) -> Iterator[Callable[..., Stack]]:
    """Start stacks (see ``tests.stack.Stack`` for the arguments) that end with the test.

    The logs of their processes are shown when the test fails.
    """
    stacks: list[Stack] = []

    def start(**arguments: Any) -> Stack:
        stacks.append(Stack(**arguments).__enter__())
        return stacks[-1]

    yield start
    for stack in stacks:
        if request.node.stash.get(failed, True):
            stack.show_logs()
        stack.__exit__(None, None, None)
