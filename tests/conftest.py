"""Fixtures for all tests. The services themselves start in ``tests.settings``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db.backends.postgresql.operations import DatabaseOperations

from tests.stack import Stack

failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Remember on the item whether its test failed: fixtures ask at their end."""
    report = yield
    if report.when == "call":
        item.stash[failed] = report.failed
    return report


@pytest.fixture(autouse=True, scope="session")
def tables_that_only_grow_can_be_emptied() -> Iterator[None]:
    """Between tests, and by nobody else: Django empties all tables by TRUNCATE, which they refuse."""
    from billing.services.guards import GUARDS

    flush = DatabaseOperations.sql_flush

    def sql_flush(self: Any, style: Any, tables: Any, **options: Any) -> list[str]:
        guarded = [table for table in GUARDS if table in tables]
        return [
            *(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in guarded),
            *(f"GRANT TRUNCATE ON {table} TO CURRENT_USER" for table in guarded),
            *flush(self, style, tables, **options),
            *(f"REVOKE TRUNCATE ON {table} FROM CURRENT_USER" for table in guarded),
            *(f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in guarded),
        ]

    DatabaseOperations.sql_flush = sql_flush  # type: ignore[method-assign]
    yield
    DatabaseOperations.sql_flush = flush  # type: ignore[method-assign]


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
