"""The rule for contributors of docs/operations.md: the version before runs on the schema after."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation

APPS = ("streaming", "billing", "gateway_project")
# Up to here no version had been released that could run beside.
BEFORE_THE_RULE = {
    "streaming": "0005_webhooks", "billing": "0003_periods", "gateway_project": "0001_roles",
}  # fmt: skip
WITNESSED = {"ledgerentry", "settlement", "periodtotal", "billingperiod", "priceplan"}
CONTRACT = "contract"
"""In the name of a migration that drops what no version uses that may still run."""


def objections(operation: Operation, app: str, created: set[str]) -> Iterator[str]:
    """Why the version before would not bear it. ``created``: models that came with it."""
    match operation:
        case migrations.RemoveField() | migrations.DeleteModel():
            yield "the version before still uses it"
        case migrations.RenameField() | migrations.RenameModel() | migrations.AlterModelTable():
            yield "the version before knows the old name only"
        case migrations.AddField():
            model, field = operation.model_name_lower, operation.field
            if model in created or isinstance(field, models.ManyToManyField):
                return
            if app == "billing" and model == "auditentry":
                yield "an audit entry never grows"
            elif app == "billing" and model in WITNESSED and not field.null:
                yield "the hash of every old row would change"
            elif not field.null and not field.has_db_default():
                yield "the version before and raw SQL insert rows without it: give it a db_default"
        case AddIndexConcurrently():
            return
        case migrations.AddIndex() | migrations.AddConstraint():
            if operation.model_name_lower not in created:
                yield "flushes wait while it is built: AddIndexConcurrently, or NOT VALID"


def test_migrations_keep_it() -> None:
    loader = MigrationLoader(None)
    for (app, name), migration in sorted(loader.disk_migrations.items()):
        if app not in APPS or name <= BEFORE_THE_RULE[app] or CONTRACT in name:
            continue
        created: set[str] = set()
        touched: set[str] = set()
        for operation in migration.operations:
            if isinstance(operation, migrations.CreateModel):
                created.add(operation.name_lower)
            found = [*objections(operation, app, created)]
            assert not found, f"{app} {name}: {operation.describe()}: {found[0]}"
            model = getattr(operation, "model_name_lower", "")
            touched |= {model} - {"", *created}
        assert len(touched) <= 1, (
            f"{app} {name} locks {touched} until it ends: one table a migration"
        )


def test_the_apps_are_those_that_have_migrations_of_ours() -> None:
    assert BEFORE_THE_RULE.keys() == {*APPS}


@pytest.mark.parametrize(
    ("operation", "app", "is_fine"),
    [
        (migrations.AddField("attempt", "x", models.TextField(null=True)), "streaming", True),
        (migrations.AddField("attempt", "x", models.IntegerField(db_default=0)), "streaming", True),
        (migrations.AddField("attempt", "x", models.IntegerField(default=0)), "streaming", False),
        (migrations.AddField("new", "x", models.IntegerField(default=0)), "streaming", True),
        (migrations.AddField("ledgerentry", "x", models.TextField(null=True)), "billing", True),
        (
            migrations.AddField("ledgerentry", "x", models.TextField(db_default="")),
            "billing",
            False,
        ),
        (migrations.AddField("auditentry", "x", models.TextField(null=True)), "billing", False),
        (migrations.RemoveField("attempt", "node"), "streaming", False),
        (migrations.RenameField("attempt", "node", "engine"), "streaming", False),
        (migrations.AddIndex("attempt", models.Index("node", name="by_node")), "streaming", False),
        (AddIndexConcurrently("attempt", models.Index("node", name="by_node")), "streaming", True),
    ],
    ids=repr,
)
def test_what_it_says(operation: Operation, app: str, is_fine: bool) -> None:
    assert (not [*objections(operation, app, {"new"})]) == is_fine
