"""The support desk on a million sessions and twenty million checkpoints: indexes lead every query.

``make soak`` runs it so, and what it prints is in ``docs/performance.md``; with the other tests it
runs on few, where nothing but the number of queries is looked at.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from tests.admin.desk_rows import LARGE, fill, of_session

pytestmark = pytest.mark.django_db

LIST = "admin:streaming_interruptedsession_changelist"
SESSIONS = "admin:streaming_streamsession_changelist"
SESSION = "admin:streaming_streamsession_change"
MOST_QUERIES = 25


def pages(given: dict[str, Any]) -> list[str]:
    interrupted = reverse(LIST)
    searches = [
        given["reference"], given["reference"][:3], given["interrupted"],
        of_session(given["interrupted"]), given["request_id"], given["request_id"][:12],
        given["end_user"], "user-43", given["key"], "nothing",
    ]  # fmt: skip
    queries = [
        "", "outcome=recovered", "outcome=suspended", "outcome=lost", "outcome=left",
        "outcome=all", "cause=engine_oom", "cause=content_violation", "cause=engine_ecc",
        "node=gpu-7", f"tenant={given['large']}", f"tenant={given['small']}", "model=model-0",
        "noticed=yes", "noticed=no", "review=needed", "review=mine", "review=assigned",
        "review=reviewed", f"tenant={given['small']}&cause=engine_oom&outcome=lost",
        "cause=engine_ecc&node=gpu-7&noticed=yes", "interrupted_at__year=2026", "p=9",
        *(f"q={term}" for term in searches),
    ]  # fmt: skip
    return [
        reverse("admin:index"),
        *(f"{interrupted}?{query}" for query in queries),
        *(f"{reverse(SESSIONS)}?{query}" for query in ["", *(f"q={term}" for term in searches)]),
        reverse(SESSION, args=[given["interrupted"]]),
        reverse(SESSION, args=[given["session"]]),
    ]


def plan_of(sql: str) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT json) {sql}")
        plan = cursor.fetchone()[0]
    root: dict[str, Any] = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    return root


def read_whole(node: dict[str, Any]) -> list[str]:
    """The large tables, or partitions of them, that a plan reads whole."""
    found = []
    if node["Node Type"] == "Seq Scan" and _is_large(node["Relation Name"]):
        found.append(node["Relation Name"])
    for child in node.get("Plans", ()):
        found += read_whole(child)
    return found


def _is_large(table: str) -> bool:
    return table in LARGE or table.startswith("checkpoints_")


def led_by(node: dict[str, Any]) -> list[str]:
    """The indexes that a plan uses, in words."""
    found = [node["Index Name"]] if "Index Name" in node else []
    for child in node.get("Plans", ()):
        found += led_by(child)
    return found


@pytest.mark.parametrize(
    ("count", "rows"), [(2_000, 2), pytest.param(1_000_000, 20, marks=pytest.mark.soak)]
)
def test_the_desk(admin_client, count, rows):
    began = time.monotonic()
    given = fill(count, rows)
    print(f"\n{count} sessions of {rows} checkpoints in {time.monotonic() - began:.0f} s")
    admin_client.get(reverse(LIST))  # what is cached once
    urls = pages(given) if count > 10_000 else pages(given)[::3]
    for url in urls:
        with CaptureQueriesContext(connection) as seen:
            asked = time.perf_counter()
            answer = admin_client.get(url)
            took = time.perf_counter() - asked
        assert answer.status_code == 200, url
        assert len(seen) <= MOST_QUERIES, (url, [query["sql"][:300] for query in seen])
        print(f"{took * 1000:6.0f} ms {len(seen):3} queries  {url}")
        if count > 10_000:
            look_at_plans(url, [query["sql"] for query in seen])


def look_at_plans(url: str, statements: list[str]) -> None:
    indexes = set()
    for sql in statements:
        if sql.lstrip("\n (").startswith(("SELECT", "WITH")):
            plan = plan_of(sql)
            assert read_whole(plan) == [], (url, sql)
            days = {name for name in led_by(plan) if name.startswith("checkpoints_")}
            assert len(days) <= 1, (url, sql)  # a session's content is all in one partition
            indexes.update(name for name in led_by(plan) if os.environ.get("SHOW_PLANS"))
    if indexes:
        print(f"{'':>19}{', '.join(sorted(indexes))}")
