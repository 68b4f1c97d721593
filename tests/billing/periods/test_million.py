"""A month of a million lines is reconciled in the memory that a small one takes."""

from __future__ import annotations

import time

import psutil
import pytest
from django.db import connection
from django.utils import timezone

from billing.services.periods import period_at
from billing.services.reconciliation import reconcile
from streaming.models import Attempt
from tests.billing.periods.books import settle
from tests.billing.rows import add_plan, add_tenant, ended_session

MEMORY = 60 * 1024 * 1024
TOKENS = 20
FAR_AWAY = 1_000_000_000
"""Beyond the ids that other tests have left the sequences at."""


@pytest.mark.django_db
@pytest.mark.parametrize("count", [2_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_many_lines_in_little_memory(count):
    add_plan()
    story = ended_session(TOKENS)
    settle(story)
    Attempt.objects.update(engine_completion_tokens=TOKENS)
    repeat(count - 1)
    now = timezone.now()
    reconcile(period_at(add_tenant("other").pk, now))  # what is imported and cached once
    process = psutil.Process()
    before, began = process.memory_info().rss, time.monotonic()
    report = reconcile(period_at(add_tenant().pk, now))
    grown = process.memory_info().rss - before
    print(f"{count} lines: {time.monotonic() - began:.1f} s, {grown / 1e6:.0f} MB more")
    assert report.differences == []
    assert (report.sessions, report.recounted, report.lines) == (count, count, count)
    assert report.billed_tokens == count * TOKENS == report.engines["a"].told
    assert grown < MEMORY


def repeat(times: int) -> None:
    """Have the one session that there is so many times more, with all of its rows."""
    made = {"session_id": "made.id", "usage_id": "made.id"}
    own_id = {"id": "made.n"}
    tables: dict[str, dict[str, str]] = {
        "streaming_streamsession": {"id": "made.id"},
        "session_fence": made,
        "streaming_tokencheckpoint": {**made, "id": "made.n * 10 + x.id"},
        "streaming_attempt": {**made, **own_id},
        "billing_usagerecord": made,
        "billing_settlement": {**made, **own_id},
        "billing_ledgerentry": {
            **made,
            "id": "gen_random_uuid()",
            "settlement_id": "made.n",
            "idempotency_key": "made.id::text",
        },
    }
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE made ON COMMIT DROP AS"
            " SELECT %s::bigint + n AS n, gen_random_uuid() AS id FROM generate_series(1, %s) n",
            [FAR_AWAY, times],
        )
        for table, other in tables.items():
            cursor.execute(
                "SELECT column_name FROM information_schema.columns"
                " WHERE table_name = %s AND is_generated = 'NEVER'",
                [table],
            )
            columns = [name for (name,) in cursor.fetchall()]
            values = ", ".join(other.get(name, f"x.{name}") for name in columns)
            cursor.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table} x, made"
            )
        cursor.execute("ANALYZE")
