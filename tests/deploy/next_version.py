"""The neighbouring version of this program: its own code, with a schema that has grown.

There are two real code trees, so what runs beside each other are two versions, not two processes of
one. Every table of the hot path gets a column that may be null and one with a default, and there is a
new table: what an expanding migration may do (docs/operations.md).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.stack import ROOT

PARTS = ("gateway_project", "streaming", "billing", "templates")

# Ledger and settlements are witnessed by hashes over all columns that are not null; an audit entry is
# hashed over all that it has, and so never grows.
GROWN = """

from django.db import models as _models  # noqa: E402

for _model in [*globals().values()]:
    if not isinstance(_model, type) or not issubclass(_model, _models.Model):
        continue
    if not _model._meta.proxy and _model.__name__ != "AuditEntry":
        _model.add_to_class("next_note", _models.TextField(null=True))
        if _model._meta.app_label == "streaming":
            _model.add_to_class("next_count", _models.IntegerField(default=7, db_default=7))
"""
NEW_TABLE = """

class NextThing(_models.Model):
    name = _models.TextField()

    class Meta:
        app_label = "streaming"
"""


def make(directory: Path) -> Path:
    """Its code tree in ``directory``, with its migrations; nothing is migrated yet."""
    for part in PARTS:
        shutil.copytree(ROOT / part, directory / part)
    shutil.copy2(ROOT / "manage.py", directory)
    for app, addition in (("streaming", GROWN + NEW_TABLE), ("billing", GROWN)):
        models = directory / app / "models" / "__init__.py"
        models.write_text(models.read_text() + addition)
    subprocess.run(
        [sys.executable, "manage.py", "makemigrations", "streaming", "billing", "--name", "next"],
        cwd=directory, check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "gateway_project.settings"},
    )  # fmt: skip
    for app in ("streaming", "billing"):
        assert list((directory / app / "migrations").glob("*_next.py"))
    return directory
