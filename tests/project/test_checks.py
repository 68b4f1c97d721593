"""System checks, and that models and migrations agree."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.core.management import call_command

from gateway_project import checks


def ids(messages):
    return [message.id for message in messages]


def test_nothing_is_wrong_with_the_settings_of_the_tests():
    assert ids(checks.secret_key()) == []
    assert ids(checks.data_dir()) == []
    assert ids(checks.redis_url()) == []
    assert ids(checks.direct_connection(databases=["default"])) == []


def test_a_short_secret_key_is_an_error_outside_debug(settings):
    settings.SECRET_KEY = "short"
    assert ids(checks.secret_key()) == ["gateway.E001"]
    settings.DEBUG = True
    assert ids(checks.secret_key()) == []


def test_data_dir_must_be_a_directory_that_can_be_made(settings, tmp_path):
    (tmp_path / "file").write_text("")
    settings.DATA_DIR = tmp_path / "file" / "below"
    assert ids(checks.data_dir()) == ["gateway.E002"]
    settings.DATA_DIR = tmp_path / "not" / "yet" / "there"
    assert ids(checks.data_dir()) == []


def test_no_redis_is_a_warning_that_names_both_ways(settings):
    settings.REDIS_URL = ""
    (warning,) = checks.redis_url()
    assert warning.id == "gateway.W001"
    assert "make run" in warning.hint
    assert "REDIS_URL=" in warning.hint


def test_logs_are_text_or_json(settings):
    assert ids(checks.log_format()) == []
    settings.LOG_FORMAT = "xml"
    (error,) = checks.log_format()
    assert error.id == "gateway.E007"
    assert "text or json" in error.hint


@pytest.mark.parametrize(
    ("turns", "kept"),
    [
        ([(1, 2)] * 5, True),
        ([(1, 1)] * 5, False),  # an idle transaction pooler: one session serves both
        ([(1, 2), (2, 1), (1, 2)], False),
        ([(1, 2), (1, 3), (1, 2)], False),
    ],
)
def test_a_transaction_pooler_is_told_by_sessions_that_change(turns, kept):
    assert checks.keep_their_sessions(turns) is kept


def test_a_pooler_is_an_error_and_so_is_nobody(settings, monkeypatch):
    settings.DATABASE_DIRECT_URL = "postgresql://nobody@127.0.0.1:1/nothing"
    assert ids(checks.direct_connection(databases=["default"])) == ["gateway.E004"]
    monkeypatch.setattr(checks, "behind_pooler", lambda url: True)
    assert ids(checks.direct_connection(databases=["default"])) == ["gateway.E003"]
    assert ids(checks.direct_connection(databases=None)) == []


def test_postgres_itself_is_not_taken_for_a_pooler():
    assert checks.behind_pooler(settings.DATABASE_URL) is False


@pytest.mark.django_db
def test_migrations_cover_the_models(capsys):
    call_command("makemigrations", check=True, dry_run=True, verbosity=1)


def test_traces_need_their_packages(settings, monkeypatch):
    settings.TRACES_ENDPOINT = "http://127.0.0.1:4318"
    assert ids(checks.tracing()) == []
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    assert ids(checks.tracing()) == ["gateway.E008"]
    settings.TRACES_ENDPOINT = ""
    assert ids(checks.tracing()) == []
