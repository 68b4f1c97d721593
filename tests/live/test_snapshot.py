"""The figures of the live board, whose they are, and what they cost."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from streaming.models import GatewayInstance, Incident, InferenceNode, StreamSession, Tenant
from streaming.services.api_keys import create_api_key
from streaming.services.live_board import Board, snapshot
from tests.admin.rows import add_session

pytestmark = pytest.mark.django_db

LIVE = 1000


class Impatient(Board):
    """Reads each time."""

    SECONDS = 0.0


def add_gateway(seconds_ago: float = 0.0, **columns) -> GatewayInstance:
    at = timezone.now() - timedelta(seconds=seconds_ago)
    return GatewayInstance.objects.create(
        hostname="host", pid=1, started_at=at, heartbeat_at=at, **columns
    )


def beat(gateway: GatewayInstance, tokens: int, seconds: float) -> None:
    gateway.heartbeat_at += timedelta(seconds=seconds)
    gateway.figures = {**gateway.figures, "tokens": tokens}
    gateway.save()


def add_other_tenant() -> Tenant:
    key, _ = create_api_key(tenant_name="other")
    return key.tenant


def interrupted(**columns) -> StreamSession:
    return add_session(**{
        "outcome": "recovered", "interrupted_at": timezone.now() - timedelta(seconds=5),
        "interrupted_cause": "out_of_memory", "interrupted_node": "gpu-a", "ended_at": timezone.now(),
        **columns,
    })  # fmt: skip


def test_streams_are_counted_by_state():
    for state in ("created", "streaming", "streaming", "recovering", "suspended"):
        add_session(state=state)
    add_session(state="completed", ended_at=timezone.now())
    assert snapshot(None)["streams"] == {
        "starting": 1, "streaming": 2, "recovering": 1, "suspended": 1,
    }  # fmt: skip


def test_interruptions_of_the_last_minute_and_hour():
    now = timezone.now()
    interrupted(failovers=2)
    interrupted(outcome="lost", interrupted_at=now - timedelta(minutes=30))
    interrupted(outcome="left")
    interrupted(interrupted_at=now - timedelta(hours=2))
    board = snapshot(None)
    assert board["failovers"] == {"minute": 2, "hour": 3}
    assert board["interrupted"] == {
        "minute": {"recovered": 1, "suspended": 0, "lost": 0},
        "hour": {"recovered": 1, "suspended": 0, "lost": 1},
    }
    assert [one["outcome"] for one in board["newest"]] == ["recovered", "lost", "recovered"]


def test_nodes_with_what_they_hold():
    add_session(state="completed", ended_at=timezone.now())
    node = InferenceNode.objects.get()
    node.health, node.checked_at = "up", timezone.now()
    node.figures = {"running": 3, "waiting": 1, "kv_usage": 0.5, "kv_tokens": 100}
    node.save()
    add_gateway(node_streams={str(node.pk): 3}, figures={"streams": 3, "readers": 4})
    add_gateway(node_streams={str(node.pk): 2}, figures={"streams": 2, "readers": 1})
    add_gateway(seconds_ago=30, node_streams={str(node.pk): 9}, figures={"readers": 9})
    board = snapshot(None)
    assert board["readers"] == 5
    (shown,) = board["nodes"]
    assert (shown["streams"], shown["running"], shown["waiting"]) == (5, 3, 1)
    assert (shown["kv_usage"], shown["fragmentation"]) == (0.5, 0.5)
    states = [gateway["state"] for gateway in board["gateways"]]
    assert sorted(states) == ["alive", "alive", "alive", "missed"]  # one is of the session's owner


def test_rates_are_those_between_two_heartbeats():
    board = Impatient()
    gateway = add_gateway(seconds_ago=4, figures={"tokens": 1000})
    assert board.current(None)["tokens_per_second"] is None
    beat(gateway, 1150, seconds=1.5)
    assert board.current(None)["tokens_per_second"] == 100.0
    # The same heartbeat again is no standstill, and a process that begins anew no rate below nothing.
    shown = board.current(None)
    assert shown["tokens_per_second"] == 100.0
    assert shown["gateways"][0]["tokens_per_second"] == 100.0
    beat(gateway, 0, seconds=1.0)
    assert board.current(None)["tokens_per_second"] == 0.0


def test_who_watches_the_same_shares_one_reading():
    board = Board()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        first = board.current(None)
        again = board.current(None)
    assert again is first
    assert len(queries) <= 7


def test_single_tenants_see_their_own_and_nothing_of_the_fleet():
    other = add_other_tenant()
    mine = interrupted()
    theirs = interrupted(tenant=other, reference="THE-IRS", outcome="lost")
    add_session(state="streaming", tenant=other)
    incident = Incident.objects.create(kind="node_failed", subject="gpu-a", cause="crashed")
    Incident.objects.create(kind="node_failed", subject="gpu-b")
    StreamSession.objects.filter(pk=theirs.pk).update(incident=incident)
    add_gateway(figures={"readers": 9})

    board = snapshot(frozenset({mine.tenant_id}))
    assert [one["reference"] for one in board["newest"]] == [mine.reference]
    assert board["streams"]["streaming"] == 0
    assert board["incidents"] == []

    board = snapshot(frozenset({other.pk}))
    assert board["limited"]
    assert (board["readers"], board["nodes"], board["gateways"]) == (None, None, None)
    assert board["streams"]["streaming"] == 1
    assert [one["cause"] for one in board["incidents"]] == ["Crashed"]
    assert "gpu-a" not in json.dumps(board)

    assert snapshot(frozenset())["newest"] == []


def test_single_tenants_have_rates_of_their_own():
    session = add_session(state="streaming")
    board, tenants = Impatient(), frozenset({session.tenant_id})
    assert board.current(tenants)["tokens_per_second"] is None
    type(session.fence).objects.update(durable_seq=50)
    assert board.current(tenants)["tokens_per_second"] > 0
    assert board.current(frozenset())["tokens_per_second"] is None


@pytest.mark.parametrize("stored", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("limited", [False, True])
def test_a_thousand_live_among_many_stored_are_found_by_index(limited, stored):
    """And what it asks for does not depend on how many there are."""
    session = add_session(state="completed", ended_at=timezone.now())
    add_gateway(node_streams={str(InferenceNode.objects.get().pk): LIVE})
    with connection.cursor() as cursor:
        cursor.execute(_COPIES, {"model": session.pk, "live": LIVE, "stored": stored})
        cursor.execute(_COPIES_OF_FENCES, {"model": session.pk})
        cursor.execute(_ATTEMPTS)
        cursor.execute("ANALYZE streaming_streamsession, session_fence, streaming_attempt")
    tenants = frozenset({session.tenant_id}) if limited else None
    with CaptureQueriesContext(connection) as queries:
        board = snapshot(tenants)
    assert board["streams"]["streaming"] == LIVE
    assert len(queries) <= 7
    with connection.cursor() as cursor:
        for query in queries.captured_queries:
            cursor.execute(f"EXPLAIN {query['sql']}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            # Of a few thousand fences, those of a thousand are as well found by reading all.
            tables = ["streaming_streamsession"]
            if stored > 100_000:
                tables += ["session_fence", "streaming_attempt"]
            for table in tables:
                assert f"Seq Scan on {table}" not in plan, f"{query['sql']}\n{plan}"
    if stored > 100_000:
        began = time.monotonic()
        snapshot(tenants)
        print(f"{1000 * (time.monotonic() - began):6.0f} ms  {stored} stored, limited: {limited}")


# Ended ones with an interruption in every tenth, and live ones at the end.
_COPIES = """
INSERT INTO streaming_streamsession
SELECT copy.* FROM generate_series(1, %(live)s + %(stored)s) AS i,
    streaming_streamsession given,
    jsonb_populate_record(given, jsonb_build_object(
        'id', gen_random_uuid(),
        'state', CASE WHEN i <= %(stored)s THEN 'completed' ELSE 'streaming' END,
        'ended_at', CASE WHEN i <= %(stored)s THEN now() - i * interval '1 minute' END,
        'outcome', CASE WHEN i %% 10 = 0 AND i <= %(stored)s THEN 'recovered' ELSE '' END,
        'interrupted_at', CASE WHEN i %% 10 = 0 THEN now() - i * interval '1 minute' END
    )) AS copy
WHERE given.id = %(model)s
"""
_ATTEMPTS = """
INSERT INTO streaming_attempt (session_id, number, kind, epoch, node_id, node_name,
    engine_request_id, seam_grade, seam_note, started_at, ended_at, end_reason, end_detail,
    discarded_tokens)
SELECT s.id, 1, 'first', 1, n.id, n.name, s.id::text, '', '', now(), s.ended_at, '', '', 0
FROM streaming_streamsession s, streaming_inferencenode n
ON CONFLICT DO NOTHING
"""
_COPIES_OF_FENCES = """
INSERT INTO session_fence (session_id, epoch, durable_seq, stop_requested)
SELECT id, 1, 10, false FROM streaming_streamsession WHERE id <> %(model)s
"""
