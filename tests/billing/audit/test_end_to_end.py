"""The log of a real gateway: what a client and an operator did, and what it came to."""

from __future__ import annotations

import os
import pwd

from tests.durability.reader import question
from tests.engine_simulator.process import SimulatorProcess
from tests.resume.events import Client, urls
from tests.stack import Stack

# A session that nobody has read is settled two seconds after its end, when no evidence can come.
SETTLE = """
import time
from billing.services.settlement import settle_due
from streaming.models import OutboxMessage
while OutboxMessage.objects.filter(handled_at=None).exists():
    settle_due()
    time.sleep(0.1)
"""


async def test_a_stop_a_drain_and_the_settlement_are_in_the_log():
    with (
        SimulatorProcess(pace=20) as engine,
        Stack(engine_nodes=[f"a=vllm+{engine.url}"]) as stack,
    ):
        async with Client(urls(stack), stack.api_key()) as client:
            session = await client.create(question("Go on", 2000))
            for _ in range(2):
                status, _ = await client.call("POST", f"/v1/sessions/{session.session_id}/stop")
                assert status == 200
        stack.manage("node", "drain", "a")
        stack.manage("shell", "-c", SETTLE)
        assert "Nothing was changed" in stack.manage("verify_audit")
        ((key_id,),) = stack.sql("SELECT id FROM streaming_apikey")
        entries = stack.sql("SELECT action, actor, subject FROM billing_auditentry ORDER BY seq")
    told = {action: (actor, subject) for action, actor, subject in entries}
    assert len(entries) == len(told) == 4, "a second stop is none"
    assert (told["ledger.charge"][0], told["settlement"][0]) == ("system", "system")
    assert told["session.stop"] == (f"key:#{key_id}", f"session:{session.session_id}")
    operator = pwd.getpwuid(os.getuid()).pw_name
    assert told["node.drain"] == (f"command:{operator}", "node:a")
