"""A session is streamed, purged, and gone; its partition goes while another session streams."""

from __future__ import annotations

import asyncio

import psycopg

from streaming.services.partitions import TABLE, Partition, today
from tests.durability.reader import Readers, Seen, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.retention.days import making
from tests.stack import Stack

RUNS = """
from streaming.tasks import purge_expired_content as purge
result = {"dropped": 0}
while not result["dropped"]:
    result = purge()
    print(result)
"""
RAN = "SELECT count(*) FROM streaming_taskrun WHERE name = 'purge_expired_content' AND runs > 0"


async def test_a_day_goes_while_another_session_streams(start_stack):
    with SimulatorProcess(pace=50) as engine:
        stack = start_stack(engine_nodes=[f"a=vllm+{engine.url}"])
        async with Readers(stack.gateway().url, stack.api_key()) as readers:
            old = await readers.ask(question("Hello", 20), headers={"idempotency-key": "k"})
            assert old.is_whole
            partition = grow_old(stack, old)
            live = Seen(question("And on", 10_000))
            streaming = asyncio.create_task(readers.ask(live.messages, seen=live))
            await until(lambda: len(live.tokens) > 5)

            with psycopg.connect(stack.database_url) as export:
                export.execute(f"SELECT count(*) FROM {TABLE}")
                runs = asyncio.create_task(asyncio.to_thread(stack.manage, "shell", "-c", RUNS))
                await until(lambda: stack.sql(RAN) != [(0,)], 60)
                now = len(live.tokens)
                await until(lambda: len(live.tokens) > now)
                assert stack.sql("SELECT to_regclass(%s)::text", partition.table) != [(None,)]
            done = await runs
            assert "'dropped': 0" in done
            assert "'dropped': 1" in done
            assert stack.sql("SELECT to_regclass(%s)::text", partition.table) == [(None,)]
            now = len(live.tokens)
            await until(lambda: len(live.tokens) > now + 5)
            streaming.cancel()
            await asyncio.gather(streaming, return_exceptions=True)
            assert live.answer.text.startswith(live.text)
            assert live.error is None

            url = f"/v1/sessions/{old.session_id}/events"
            async with readers.client.get(url) as response:
                assert response.status == 410
            again = await readers.ask(question("Hello", 20), headers={"idempotency-key": "k"})
            assert again.status == 410
            async with readers.client.get(f"/v1/sessions/{old.session_id}") as response:
                assert response.status == 200


def grow_old(stack: Stack, seen: Seen) -> Partition:
    """Have it been there for 40 days, with all of its day's content; the partition."""
    partition = Partition(today())
    for statement in making(partition):
        stack.sql(statement)
    for table, column in ((TABLE, "session_id"), ("session_fence", "session_id")):
        stack.sql(
            f"UPDATE {table} SET expires_on = %s WHERE {column} = %s",
            partition.day,
            seen.session_id,
        )
    stack.sql(
        "UPDATE streaming_streamsession SET expires_on = %s, created_at = now() - interval '40 days',"
        " ended_at = now() - interval '40 days' WHERE id = %s",
        partition.day,
        seen.session_id,
    )
    assert stack.sql(f"SELECT count(*) > 0 FROM {partition.table}") == [(True,)]
    return partition
