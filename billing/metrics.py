"""What operators watch of billing on ``/metrics``, as the database knows it.

What settlements count as they happen is with them; an amount of money is no metric.
"""

from __future__ import annotations

import psycopg
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

# One statement, each part of it by an index over what is waiting, or of the newest. The last part asks
# anew what each session has to be charged for (``core.policy``), by its delivery as it is stored now.
READ = """
SELECT
    unsettled.sessions, coalesce(extract(epoch FROM now() - unsettled.oldest), 0)::float8,
    coalesce(extract(epoch FROM now() - unaudited.oldest), 0)::float8,
    (SELECT count(*) FROM billing_creditrequest WHERE decision = 'pending'),
    (SELECT count(*) FROM billing_billingperiod WHERE closed_at IS NULL AND ends_at <= now()),
    pending.events, coalesce(extract(epoch FROM now() - pending.oldest), 0)::float8,
    coalesce((SELECT seq FROM billing_audithead WHERE id = 1), 0),
    accuracy.differing, accuracy.ratio
FROM
    (
        SELECT count(DISTINCT session_id) AS sessions, min(created_at) AS oldest
        FROM streaming_outboxmessage WHERE handled_at IS NULL AND kind <> 'audit'
    ) AS unsettled,
    (
        SELECT min(created_at) AS oldest
        FROM streaming_outboxmessage WHERE handled_at IS NULL AND kind = 'audit'
    ) AS unaudited,
    (
        SELECT count(*) AS events, min(created_at) AS oldest
        FROM billing_eventdelivery WHERE state = 'pending'
    ) AS pending,
    (
        SELECT count(*) FILTER (WHERE billed <> due) AS differing,
            1 - sum(abs(billed - due))::float8 / nullif(sum(greatest(billed, due)), 0) AS ratio
        FROM (
            SELECT (SELECT sum(output_tokens) FROM billing_settlement WHERE usage_id = newest.usage_id) AS billed,
                CASE WHEN newest.policy = 'interrupt_compensated'
                    AND s.state IN ('suspended', 'cancelled', 'failed', 'abandoned')
                THEN least(greatest(f.sent_seq, f.delivered_seq) + 1, log.tokens)
                ELSE least(f.delivered_seq, log.tokens) END AS due
            FROM (
                SELECT DISTINCT ON (usage_id) usage_id, policy
                FROM (SELECT id, usage_id, policy FROM billing_settlement ORDER BY id DESC LIMIT 500) AS last
                ORDER BY usage_id, id DESC
            ) AS newest
            JOIN streaming_streamsession s ON s.id = newest.usage_id
            JOIN session_fence f ON f.session_id = s.id
            CROSS JOIN LATERAL (
                SELECT f.durable_seq - (s.ended_at IS NOT NULL)::int AS tokens  -- the end is none
            ) AS log
            WHERE (s.ended_at IS NOT NULL OR s.state = 'suspended') AND NOT EXISTS (
                SELECT 1 FROM streaming_outboxmessage m
                WHERE m.handled_at IS NULL AND m.kind <> 'audit' AND m.session_id = s.id
            )
        ) AS judged
    ) AS accuracy
"""

GAUGES = (
    (
        "unbroken_unsettled_sessions",
        "Sessions that ended, were suspended or were delivered to, and were not settled since.",
    ),
    (
        "unbroken_unsettled_age_seconds",
        "How long the one that has waited longest for its settlement has.",
    ),
    (
        "unbroken_unaudited_age_seconds",
        "How long what somebody did has waited for its entry in the audit log.",
    ),
    ("unbroken_credit_requests_open", "Credits that wait for a second person."),
    ("unbroken_periods_to_close", "Periods that are over and were not closed."),
    ("unbroken_usage_events_waiting", "Usage events that were not delivered to their sinks yet."),
    (
        "unbroken_usage_events_age_seconds",
        "How long the one that has waited longest for its delivery has.",
    ),
    ("unbroken_audit_entries", "Entries of the audit log. It never falls."),
    (
        "unbroken_billing_differing_sessions",
        "Of the sessions that were settled last, those that are not charged for what was delivered.",
    ),
    (
        "unbroken_billing_accuracy_ratio",
        "Tokens charged as they have to be, of those of the sessions that were settled last.",
    ),
)


class BillingFigures:
    """See ``streaming.metrics.stored``."""

    def empty(self) -> list[Metric]:
        return [GaugeMetricFamily(name, meaning) for name, meaning in GAUGES]

    async def read(self, connection: psycopg.AsyncConnection) -> list[Metric]:
        row = await (await connection.execute(READ)).fetchone()
        families = [GaugeMetricFamily(name, meaning) for name, meaning in GAUGES]
        for family, value in zip(families, row or (), strict=True):
            if value is not None:  # nothing was settled yet
                family.add_metric([], float(value))
        return list(families)


FIGURES = BillingFigures()
