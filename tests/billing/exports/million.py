"""A month with a million lines, written by the database itself, and a process that exports it.

``python -m tests.billing.exports.million FORMAT`` exports November 2026 of the database that the
environment names and prints, as JSON, how long it took and the most memory that it had.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

LINES = """
WITH plan AS (SELECT * FROM billing_priceplan ORDER BY id LIMIT 1),
numbers AS (
    SELECT g AS number, '01a22a94-e9da-7000-8000-' || lpad(to_hex(g), 12, '0') AS line
    FROM generate_series(1, {lines}) AS g
), used AS (
    INSERT INTO billing_usagerecord (
        session_id, tenant_id, model, cost_centre, plan_id, settlements, attempts_told, state, evidence,
        prompt_tokens, cached_tokens, log_tokens, sent_tokens, delivered_tokens, compensated_tokens,
        billed_tokens, generated_tokens, discarded_tokens, regenerated_tokens, currency, amount, began_at
    )
    SELECT line::uuid, {tenant}, 'llama-3.3-70b-instruct', 'team-' || number % 50, plan.id, 1, 0, 'completed',
        'ack', 100, 40, number % 4096, number % 4096, number % 4096, number % 4096, number % 4096,
        number % 4096, 0, 0, 'EUR', 0, '2026-11-12T10:00:00Z'
    FROM numbers, plan
    RETURNING session_id
), settled AS (
    INSERT INTO billing_settlement (
        usage_id, n, kind, tenant_id, period_id, state, cause, model, model_requested, cost_centre,
        api_key_prefix, from_tokens, to_tokens, output_tokens, prompt_tokens, cached_tokens, log_tokens,
        sent_tokens, delivered_tokens, compensated_tokens, evidence, generated_tokens, discarded_tokens,
        regenerated_tokens, policy, plan_id, input_per_million, cached_input_per_million,
        output_per_million, coefficient, currency, amount, began_at, occurred_at, settled_at
    )
    SELECT line::uuid, 1, 'ended', {tenant}, {period}, 'completed', '', 'llama-3.3-70b-instruct',
        'chat-default', 'team-' || number % 50, 'ub-live-' || number % 20, 0, number % 4096, number % 4096,
        100, 40, number % 4096, number % 4096, number % 4096, number % 4096, 'ack', number % 4096, 0, 0,
        'delivered', plan.id, plan.input_per_million, plan.cached_input_per_million,
        plan.output_per_million, plan.coefficient, 'EUR',
        (60 * plan.input_per_million + 40 * plan.cached_input_per_million
            + (number % 4096) * plan.output_per_million) * plan.coefficient / 1000000,
        '2026-11-12T10:00:00Z', '2026-11-12T10:00:00Z'::timestamptz + number * interval '1 second', now()
    FROM numbers, plan
    RETURNING id, usage_id, amount, cost_centre
)
INSERT INTO billing_ledgerentry (
    id, kind, tenant_id, period_id, settlement_id, session_id, model, cost_centre, currency, amount,
    correction, reason, idempotency_key, actor, created_at
)
SELECT usage_id, 'charge', {tenant}, {period}, id, usage_id, 'llama-3.3-70b-instruct', cost_centre, 'EUR',
    amount, false, '', 'settlement:' || usage_id || ':1', 'system', now()
FROM settled
"""


def peak_mib() -> int:
    """The most memory that this program has had resident. (``ru_maxrss`` is also its parent's.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise RuntimeError("the kernel does not say")


def main(format: str) -> None:
    import django

    django.setup()
    from billing.exports.run import export

    began = time.monotonic()
    made = export(period_name="2026-11", format=format, actor="system")
    print(json.dumps({"id": str(made.pk), "seconds": time.monotonic() - began, "peak": peak_mib()}))


if __name__ == "__main__":
    main(sys.argv[1])
