"""Through real gateways: an engine and a gateway die, a reader leaves, and the desk knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from streaming.client import SessionReader, UnbrokenClient
from tests.durability.reader import question, until
from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess

EXPLAIN = "from streaming.services.explaining import explain_all; explain_all()"
TOLD = (
    "SELECT outcome, interrupted_cause, interrupted_node, seam_grade, incident_id IS NOT NULL"
    " FROM streaming_streamsession WHERE id = %s"
)


def body(text: str, tokens: int) -> dict[str, Any]:
    return {"model": "sim-model", "messages": question(text, tokens), "temperature": 0}


async def test_what_became_of_sessions(start_stack):
    with SimulatorProcess("vllm", pace=40) as a, SimulatorProcess("vllm", pace=40) as b:
        stack = start_stack(
            gateways=2,
            engine_nodes=[f"a=vllm+{a.url}", f"b=vllm+{b.url}"],
            env={"HEALTH_INTERVAL": "0.3", "GRACE_SECONDS": "1"},
        )
        key = stack.api_key()
        async with (
            UnbrokenClient(stack.gateway(0).url, key) as first,
            UnbrokenClient(stack.gateway(1).url, key) as second,
        ):
            # A node dies under one of several, and its reader stays.
            streams = [await second.start(body(f"node {n}", 120)) for n in range(4)]
            reading = [asyncio.create_task(_text(reader)) for reader in streams]
            on_a = (
                "SELECT count(*) FROM streaming_attempt WHERE node_name = 'a' AND ended_at IS NULL"
            )
            begun = "SELECT bool_and(durable_seq > 3) FROM session_fence"
            await until(lambda: stack.sql(on_a)[0][0] > 0 and stack.sql(begun) == [(True,)])
            hit = [
                row[0]
                for row in stack.sql(
                    "SELECT session_id FROM streaming_attempt WHERE node_name = 'a'"
                )
            ]
            a.kill()
            for n, text in enumerate(await asyncio.gather(*reading)):
                assert text == expected_answer(question(f"node {n}", 120)).text
            # A reader leaves, and nobody comes back.
            leaver = await second.start(body("leaves", 400))
            await _text(leaver, up_to=5)
            # A gateway dies, and the reader comes back to the other one.
            orphan = await first.start(body("orphan", 120))
            seen = await _text(orphan, up_to=20, then=stack.gateway(0).kill)
            seen += await _text(second.resume(orphan.id, orphan.seq))
            assert seen == expected_answer(question("orphan", 120)).text
            state = "SELECT state FROM streaming_streamsession WHERE id = %s"
            await until(lambda: stack.sql(state, leaver.id) == [("suspended",)], 20)
            causes = (
                "SELECT count(*) FROM streaming_attempt WHERE cause = ''"
                " AND end_reason NOT IN ('', 'finished', 'cancelled', 'overtaken')"
            )
            await until(lambda: stack.sql(causes) == [(0,)], 20)
    stack.manage("shell", "-c", EXPLAIN)
    for session_id in hit:
        assert stack.sql(TOLD, session_id) == [("recovered", "engine_crash", "a", "exact", True)]
    assert stack.sql(TOLD, leaver.id) == [("left", "client_gone", "", "", False)]
    assert stack.sql(TOLD, orphan.id) == [("recovered", "gateway_crash", "", "exact", True)]
    untold = "SELECT count(*) FROM streaming_changedsession WHERE at <= now()"
    assert stack.sql(untold) == [(0,)]
    normal = "SELECT count(*) FROM streaming_streamsession WHERE outcome = ''"
    assert stack.sql(normal) == [(len(streams) - len(hit),)]


async def _text(
    reader: SessionReader, *, up_to: int | None = None, then: Callable[[], None] | None = None
) -> str:
    """What it gets, to the end or to a token, where ``then`` happens before it hangs up."""
    text = ""
    async with aclosing(aiter(reader)) as pieces:
        async for piece in pieces:
            text += piece.text
            if up_to is not None and piece.seq >= up_to:
                break
        if then is not None:
            then()
    return text
