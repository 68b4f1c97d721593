"""``manage.py migrate``: one at a time, however long it takes."""

from __future__ import annotations

import pytest
from django.db import connection

from gateway_project.management.commands.migrate import OLDEST, ONE_AT_A_TIME, _one_at_a_time


@pytest.mark.django_db
def test_its_lock_outlives_the_limits_on_idle_connections() -> None:
    """Whoever waits for a table's lock for minutes still is the only one."""
    impatient = connection.copy()
    limits = "-c idle_in_transaction_session_timeout=50 -c idle_session_timeout=50"
    impatient.settings_dict["OPTIONS"] = {**impatient.settings_dict["OPTIONS"], "options": limits}
    with _one_at_a_time(impatient), connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.3)")
        assert _is_free(cursor) is False
        cursor.execute(OLDEST)
        assert cursor.fetchall() == [], "the lock itself is in nobody's way"
    with connection.cursor() as cursor:
        assert _is_free(cursor) is True


def _is_free(cursor) -> bool:
    cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [ONE_AT_A_TIME])
    return cursor.fetchone()[0]
