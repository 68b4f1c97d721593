"""The environment as settings see it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from gateway_project.environment import database_settings, stored_secret_key
from gateway_project.management.commands.settings_table import table

ROOT = Path(__file__).resolve().parents[2]


def test_the_documented_table_is_the_generated_one():
    document = (ROOT / "docs" / "settings.md").read_text()
    assert table() in document, "run: python manage.py settings_table --write"


def test_a_url_becomes_djangos_settings():
    settings = database_settings(
        "postgresql://app:p%40ss@db.example:6432/gateway?sslmode=require", pool_size=8
    )
    assert settings["HOST"] == "db.example"
    assert settings["PORT"] == "6432"
    assert settings["NAME"] == "gateway"
    assert settings["PASSWORD"] == "p@ss"
    assert settings["OPTIONS"]["sslmode"] == "require"
    assert settings["OPTIONS"]["pool"]["max_size"] == 8
    assert "pool" not in database_settings("postgresql://app@db/gateway", pool_size=0)["OPTIONS"]


def test_a_url_that_is_none_is_not_repeated():
    with pytest.raises(ImproperlyConfigured) as error:
        database_settings("mysql://root:secret@db/app", pool_size=0)
    assert "secret" not in str(error.value)


def test_the_secret_key_is_made_once_and_private(tmp_path):
    key = stored_secret_key(tmp_path / "data")
    assert len(key) >= 50
    assert stored_secret_key(tmp_path / "data") == key
    file = tmp_path / "data" / "secret_key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["secret_key"]


def test_a_command_without_a_database_says_what_to_do(tmp_path):
    env = {key: value for key, value in os.environ.items() if not key.endswith("_URL")}
    done = subprocess.run(
        [sys.executable, "manage.py", "showmigrations"],
        cwd=ROOT,
        env={
            **env,
            "DJANGO_SETTINGS_MODULE": "gateway_project.settings",
            "DATA_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "make run" in done.stderr
    assert "DATABASE_URL=" in done.stderr
