"""Fixtures for all tests. The services themselves start in ``tests.settings``."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db.backends.postgresql.operations import DatabaseOperations
from django.db.models.signals import post_migrate
from hypothesis import settings

from tests.stack import Stack

# That an example took long says something of the machine, which may be busy.
settings.register_profile("gateway", deadline=None)
settings.load_profile("gateway")

failed = pytest.StashKey[bool]()


def pytest_configure() -> None:
    """Engines, gateways and readers inherit how many files they may have open: as many as is allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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


@pytest.fixture(autouse=True, scope="session")
def groups_of_migrations_come_back() -> Iterator[None]:
    """After tests that empty all tables: Django makes permissions anew then, and nobody the groups.

    What comes back is what the migrations had made, not what it should have been.
    """
    made: dict[str, set[tuple[str, ...]]] = {}

    def remember_or_restore(app_config: Any, **_: Any) -> None:
        told = [config for config in apps.get_app_configs() if config.models_module]
        if app_config is not told[-1]:  # the others' permissions may not be there yet
            return
        from django.contrib.auth.models import Group, Permission

        if not made:
            made.update({group.name: keys(group.permissions) for group in Group.objects.all()})
            return
        ids = {key(one): one for one in Permission.objects.select_related("content_type")}
        for name, permissions in made.items():
            group, _ = Group.objects.get_or_create(name=name)
            group.permissions.set(ids[one] for one in permissions)

    def keys(permissions: Any) -> set[tuple[str, ...]]:
        return {key(one) for one in permissions.select_related("content_type")}

    def key(permission: Any) -> tuple[str, ...]:
        return (*permission.content_type.natural_key(), permission.codename)

    post_migrate.connect(remember_or_restore, weak=False)
    yield
    post_migrate.disconnect(remember_or_restore)


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
