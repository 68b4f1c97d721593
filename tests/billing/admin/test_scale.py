"""The admin on a million sessions: every list is led through an index, and nothing is counted.

Run by ``make soak``; what it prints is in ``docs/performance.md``.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

pytestmark = [pytest.mark.soak, pytest.mark.django_db(transaction=True)]

SESSIONS = 1_000_000
TENANTS = 200
LARGE = ("billing_ledgerentry", "billing_settlement", "billing_usagerecord", "billing_auditentry",
         "billing_eventdelivery")  # fmt: skip

# Half of the sessions are the first tenant's. One in 2,000 charges was credited, one in 5,000
# settlements gives back, one event in 10,000 could not be delivered.
FILL = (
    "SET session_replication_role = replica",
    f"""INSERT INTO streaming_tenant (name, display_name, created_at)
    SELECT 'tenant-' || i, '', now() FROM generate_series(1, {TENANTS}) i""",
    """INSERT INTO billing_billingaccount (tenant_id, legal_name, time_zone, limits_are_hard, spend_currency)
    SELECT id, '', 'UTC', true, '' FROM streaming_tenant""",
    """INSERT INTO billing_billingperiod
        (tenant_id, name, starts_at, ends_at, time_zone, closed_by, checklist, account_name, issuer)
    SELECT id, '2026-' || lpad(m::text, 2, '0'), make_timestamptz(2026, m, 1, 0, 0, 0, 'UTC'),
        make_timestamptz(2026, m, 1, 0, 0, 0, 'UTC') + interval '1 month', 'UTC', '', '{}', '', ''
    FROM streaming_tenant, generate_series(1, 11) m""",
    f"""CREATE TEMP TABLE given AS SELECT i,
        (lpad(to_hex(1780000000000 + i * 1000), 12, '0') || '7' || substr(md5(i::text), 1, 19))::uuid AS id,
        (SELECT min(id) FROM streaming_tenant) + CASE WHEN i % 2 = 0 THEN 0 ELSE i / 2 % {TENANTS} END AS tenant,
        (SELECT min(id) FROM billing_billingperiod) + i % ({TENANTS} * 11) AS period
    FROM generate_series(1, {SESSIONS}) i""",
    """INSERT INTO billing_usagerecord (session_id, tenant_id, model, cost_centre, settlements,
        attempts_told, events_told, state, evidence, prompt_tokens, cached_tokens, log_tokens, sent_tokens,
        delivered_tokens, compensated_tokens, billed_tokens, generated_tokens, discarded_tokens,
        regenerated_tokens, currency, amount, began_at)
    SELECT id, tenant, 'm', '', 1, 0, 0, 'completed', 'ack', 10, 0, 100, 100, 100, 100, 100, 100, 0, 0,
        'EUR', 0.001, now() FROM given""",
    """INSERT INTO billing_settlement (usage_id, n, kind, tenant_id, period_id, state, cause, model,
        model_requested, cost_centre, api_key_prefix, from_tokens, to_tokens, output_tokens, prompt_tokens,
        cached_tokens, log_tokens, sent_tokens, delivered_tokens, compensated_tokens, evidence,
        generated_tokens, discarded_tokens, regenerated_tokens, policy, input_per_million,
        cached_input_per_million, output_per_million, coefficient, currency, amount, began_at, occurred_at,
        settled_at)
    SELECT id, 1, CASE WHEN i % 5000 = 0 THEN 'denied' ELSE 'ended' END, tenant, period, 'completed', '',
        'm', 'm', '', '', 0, 100, 100, 10, 0, 100, 100, 100, 100, 'ack', 100, 0, 0, 'delivered', 1, 0, 1,
        1, 'EUR', 0.001, now(), now(), now() FROM given""",
    """INSERT INTO billing_ledgerentry (id, kind, tenant_id, period_id, settlement_id, session_id, model,
        cost_centre, currency, amount, correction, reason, idempotency_key, actor, created_at)
    SELECT usage_id, 'charge', tenant_id, period_id, id, usage_id, 'm', '', 'EUR', 0.001, false, '',
        'settlement:' || usage_id || ':1', 'system', now() FROM billing_settlement""",
    """INSERT INTO billing_ledgerentry (id, kind, tenant_id, period_id, charge_id, session_id, model,
        cost_centre, currency, amount, correction, reason, idempotency_key, actor, created_at)
    SELECT gen_random_uuid(), 'credit', tenant_id, period_id, usage_id, usage_id, 'm', '', 'EUR', -0.001,
        false, 'late', 'credit:' || usage_id, 'user:pat', now()
    FROM billing_settlement WHERE id % 2000 = 0""",
    """INSERT INTO billing_auditentry
        (seq, at, action, actor, subject, tenant_id, session_id, data, previous, hash)
    SELECT i, now(), CASE WHEN i % 1000 = 0 THEN 'node.drain' ELSE 'ledger.charge' END, 'system',
        'ledger:' || id, tenant, id, '{}', sha256(i::text::bytea), sha256((i + 1)::text::bytea)
    FROM given""",
    """INSERT INTO billing_usagesink
        (name, kind, url, credential, secret_version, enabled, options, created_at)
    VALUES ('collector', 'webhook', 'https://collector.example', '', 1, true, '{}', now())""",
    """INSERT INTO billing_eventdelivery
        (sink_id, event_id, type, body, state, tries, next_at, answered, created_at)
    SELECT (SELECT id FROM billing_usagesink), 'settlement:' || id, 't', '{}',
        CASE WHEN i % 10000 = 0 THEN 'failed' ELSE 'delivered' END, 1, now(), '', now() FROM given""",
    "SET session_replication_role = origin",
    "ANALYZE",
)  # fmt: skip


@pytest.fixture
def filled() -> dict[str, Any]:
    with connection.cursor() as cursor:
        for statement in FILL:
            cursor.execute(statement)
        cursor.execute("SELECT id, period FROM given ORDER BY i DESC LIMIT 1")
        session, period = cursor.fetchone()
        cursor.execute("SELECT min(id), max(id) FROM streaming_tenant")
        large, small = cursor.fetchone()
    return {"session": session, "period": period, "large": large, "small": small}


def pages(given: dict[str, Any]) -> list[str]:
    session, period = given["session"], given["period"]
    lists = {
        "ledgerentry": [
            "", "kind=charge", "kind=credit", "kind=adjustment", f"tenant={given['large']}",
            f"tenant={given['small']}", f"period={period}", f"tenant={given['small']}&kind=credit",
            f"q={session}", f"q=settlement:{session}:1", "q=nothing",
        ],
        "settlement": [
            "", "kind=denied", "kind=suspended", f"tenant={given['small']}", f"period={period}",
            f"q={session}",
        ],
        "usagerecord": ["", f"tenant={given['large']}", f"tenant={given['small']}", f"q={str(session)[:9]}"],
        "auditentry": ["", f"q={session}", "q=node.drain", "q=no.such", f"q=ledger:{session}", "q=node:"],
        "eventdelivery": ["", "state=failed", "state=pending"],
        "billingperiod": ["", "q=tenant-7"],
    }  # fmt: skip
    urls = [
        f"{reverse(f'admin:billing_{model}_changelist')}?{query}"
        for model, queries in lists.items()
        for query in queries
    ]
    urls += [
        reverse(f"admin:billing_{model}_change", args=[key])
        for model, key in (
            ("usagerecord", session), ("ledgerentry", session), ("settlement", 1),
            ("billingperiod", period), ("auditentry", 1),
        )
    ]  # fmt: skip
    return urls


def scans(sql: str) -> list[str]:
    """The large tables that a statement reads whole."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT json) {sql}")
        plan = cursor.fetchone()[0]
    found: list[str] = []

    def look(node: dict[str, Any]) -> None:
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE:
            found.append(node["Relation Name"])
        for child in node.get("Plans", ()):
            look(child)

    look((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    return found


def test_no_page_reads_a_large_table_whole(admin_client, filled):
    for url in pages(filled):
        with CaptureQueriesContext(connection) as seen:
            began = time.perf_counter()
            response = admin_client.get(url)
            took = time.perf_counter() - began
        assert response.status_code == 200, url
        print(f"{took * 1000:6.0f} ms {len(seen):3} queries  {url}")
        assert len(seen) <= 12, url
        for query in seen:
            if query["sql"].startswith("SELECT"):
                assert scans(query["sql"]) == [], (url, query["sql"])
