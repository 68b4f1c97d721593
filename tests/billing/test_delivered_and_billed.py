"""A real gateway, a reader that leaves half way and comes back, and a worker that settles."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tests.billing.worker import Worker
from tests.durability.reader import question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.resume.events import Client, Reading
from tests.stack import Stack

PLAN = """
WITH list AS (INSERT INTO billing_pricelist (tenant_id, model) VALUES (NULL, '') RETURNING id)
INSERT INTO billing_priceplan (list_id, effective_from, currency, input_per_million,
    cached_input_per_million, output_per_million, coefficient, policy, note, created_by, created_at)
SELECT id, now() - interval '1 day', 'EUR', 1, 1, 4, 1, 'delivered', '', 'user:pat', now() FROM list
"""
SETTLEMENTS = """
SELECT kind, state, from_tokens, to_tokens, prompt_tokens, delivered_tokens, amount
FROM billing_settlement ORDER BY n
"""

USAGE = """
SELECT billed_tokens, delivered_tokens, generated_tokens, prompt_tokens, amount, state, cost_centre
FROM billing_usagerecord
"""
INTERRUPTIONS = """
SELECT data::json ->> 'what', (data::json ->> 'position')::int FROM billing_auditentry
WHERE action = 'session.interrupted'
"""


async def settled(
    stack: Stack, worker: Worker, condition: Callable[[list[tuple[Any, ...]]], bool]
) -> list[tuple[Any, ...]]:
    """The settlements, once nothing waits and they are as the condition says."""

    def done() -> bool:
        worker.settle()
        waits = "SELECT count(*) FROM streaming_outboxmessage WHERE handled_at IS NULL"
        return stack.sql(waits) == [(0,)] and condition(stack.sql(SETTLEMENTS))

    await until(done, 60)
    return stack.sql(SETTLEMENTS)


async def test_a_stream_left_half_way_costs_what_was_delivered(start_stack):
    with SimulatorProcess(pace=40) as engine:
        stack = start_stack(engine_nodes=[f"a=vllm+{engine.url}"], env={"GRACE_SECONDS": "0.5"})
        stack.sql(PLAN)
        key = stack.api_key(cost_centre="R&D")
        async with Client([stack.gateway().url], key) as client:
            with Worker(stack) as worker:
                await leave_and_return(stack, worker, client)


async def leave_and_return(stack: Stack, worker: Worker, client: Client) -> None:
    reading = await client.create(question("Tell me", 240))
    whole = reading.answer.completion_tokens
    await client.read(reading, leave_at=30)
    await acknowledge(client, reading)
    first, *more = await settled(stack, worker, lambda rows: len(rows) > 0)
    kind, state, start, _, prompt, _, _ = first
    assert (kind, state, start) == ("suspended", "suspended", 0)
    assert prompt > 0
    assert all(line[0] == "delivered" for line in more)  # the socket had more to tell
    half = [first, *more]
    _, _, _, end, _, delivered, _ = half[-1]
    ((log,),) = stack.sql("SELECT durable_seq FROM session_fence")
    assert reading.seq <= end == delivered <= log < whole
    assert sum(line[6] for line in half) == Decimal(prompt + 4 * delivered) / 10**6

    await client.read(reading)
    reading.must_be_whole()
    await acknowledge(client, reading)
    lines = await settled(stack, worker, lambda rows: rows[-1][3] == whole)
    assert sum(line[3] - line[2] for line in lines) == whole
    assert sum(line[4] for line in lines) == prompt
    amount = Decimal(prompt + 4 * whole) / 10**6
    # The engine may have been ahead when it was let go.
    generated = stack.sql(USAGE)[0][2]
    assert generated >= whole
    assert stack.sql(USAGE) == [(whole, whole, generated, prompt, amount, "completed", "R&D")]
    booked = stack.sql("SELECT sum(amount), count(*) FROM billing_ledgerentry")
    assert booked == [(amount, len(lines))]
    assert stack.sql(INTERRUPTIONS) == [("suspended", log)]
    assert "No difference: 1 sessions compared" in stack.manage("rebuild_usage", "--dry-run")


async def acknowledge(client: Client, reading: Reading) -> None:
    """Say what arrived."""
    path = f"/v1/sessions/{reading.session_id}/ack"
    status, _ = await client.call("POST", path, {"seq": reading.cursor})
    assert status == 200
