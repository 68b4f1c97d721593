"""Real answers, with everything that may happen to one, are settled; then ledger = settlements = log."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.durability.reader import Readers, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

SETTLE = "from billing.services.settlement import settle_due; print(settle_due())"
PURGE = "from streaming.services.purge import purge_expired_content as p; print(p())"
OPEN = (
    "SELECT count(*) FROM streaming_streamsession WHERE ended_at IS NULL AND state <> 'suspended'"
)
NOW = "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM')"
WAITING = "SELECT count(*) FROM streaming_outboxmessage WHERE handled_at IS NULL"
RUNNING = "SELECT count(*) FROM streaming_attempt WHERE ended_at IS NULL"


@pytest.mark.parametrize("dialect", ["vllm", "llamacpp"])
async def test_what_was_billed_is_proven_before_and_after_the_content_is_purged(
    start_stack, dialect
):
    with SimulatorProcess(dialect) as one, SimulatorProcess(dialect, pace=100) as two:
        stack = start_stack(
            engine_nodes=[
                f"{name}={dialect}+{node.url}" for name, node in (("a", one), ("b", two))
            ],
            env={"GRACE_SECONDS": "0.5"},
        )
        stack.manage("price", "set", "--input", "1", "--output", "4", "--cost", "0.5")
        key = stack.api_key()
        for node in (one, two):
            node.set_fault(kind="reset", at_token=9, times=2)
        one.set_fault(kind="sigkill", at_token=14)
        async with Readers(stack.gateway().url, key) as readers:
            await asyncio.gather(
                readers.ask_many(6, "Go on", 40),
                readers.ask(question("Goodbye", 400), leave_after=5),
                readers.ask(question("Short", 3)),
            )
            stack.gateway().kill()
        stack.gateway().start_again()
        await until(lambda: stack.sql(OPEN) == [(0,)] and stack.sql(RUNNING) == [(0,)], 60)
        await until(lambda: _settled(stack), 60)
        proven = _report(stack)
        assert proven["source"] == {"log": 8, "digest": 0}
        tokens = proven["tokens"]
        assert 0 < tokens["billed"] == tokens["delivered"] <= tokens["log"]
        assert sum(tally["attempts"] for tally in proven["engines"].values()) > 0
        _end_and_purge(stack)
        purged = _report(stack)
        # One was left, and one may have met every fault: they may be suspended.
        assert purged["source"]["digest"] >= 6
        assert (purged["tokens"], purged["totals"]) == (tokens, proven["totals"])


def _settled(stack: Stack) -> bool:
    stack.manage("shell", "-c", SETTLE)
    return stack.sql(WAITING) == [(0,)]


def _report(stack: Stack) -> dict[str, Any]:
    """Of a month in which nothing differs: the command fails otherwise."""
    ((month,),) = stack.sql(NOW)
    said = stack.manage("reconcile_billing", "--period", month, "--json")
    return json.loads(said.splitlines()[-1])["report"]


def _end_and_purge(stack: Stack) -> None:
    stack.sql("UPDATE streaming_tenant SET content_days = 1")
    stack.sql(
        "UPDATE streaming_streamsession SET ended_at = ended_at - interval '2 days',"
        " created_at = created_at - interval '2 days'"
        " WHERE ended_at IS NOT NULL"
    )
    stack.manage("shell", "-c", PURGE)
