"""An attempt whose answer is whole cannot fail any more, whoever wants it to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import pytest

from streaming.core.chat import parse_chat_request
from streaming.core.chunks import Sampling
from streaming.core.failures import AttemptFailed, Cause
from streaming.core.nodes import NodeOptions
from streaming.engines.base import Generation
from streaming.engines.http import engine_client
from streaming.engines.registry import dialect_for
from streaming.fleet.continuations import Booking
from streaming.fleet.nodes import Fleet, Node
from streaming.runtime.attempt import AttemptRun
from streaming.runtime.live import LiveSession, Principal
from streaming.runtime.token_log import SessionLog
from streaming.runtime.turns import Turns
from tests.durability.reader import question, until
from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess


class Overseer:
    """Lets everything pass."""

    def may_append(self, run: AttemptRun) -> bool:
        return True

    def moved(self, run: AttemptRun) -> None: ...

    def progress(self, run: AttemptRun) -> None: ...

    async def room(self) -> None: ...

    def hedge(self, run: AttemptRun) -> None: ...

    def migrate(self, run: AttemptRun) -> None: ...


def is_moved(run: AttemptRun) -> None:
    run.interrupt(AttemptFailed(Cause.MIGRATED, "its node is being drained"))


@pytest.mark.parametrize("dialect_name", ["vllm", "llamacpp"])
@pytest.mark.parametrize(
    "strike", [is_moved, lambda run: run.condemn("down"), lambda run: run.overtake()]
)
async def test_it_is_not_cut_while_its_usage_is_read(
    dialect_name: str, strike: Callable[[AttemptRun], None]
) -> None:
    """Otherwise another engine would be asked to go on behind the end."""
    messages = question("whole", 10, "plain")
    with SimulatorProcess(dialect_name) as engine:
        engine.set_fault(kind="late_usage", arg=0.2, times=-1)
        client = engine_client()
        dialect = dialect_for(dialect_name, client, engine.url, NodeOptions())
        node = Node(1, "a", engine.url, dialect, NodeOptions())
        log = SessionLog(uuid4(), 1, lambda log: None)
        session = LiveSession(
            id=log.session_id, reference="AAAAAAA", principal=Principal(1, "acme", None),
            request=parse_chat_request({"model": "sim-model", "messages": messages}),
            model="sim-model", seed=1, log=log,
        )  # fmt: skip
        generation = Generation(
            model="sim-model", prompt=await dialect.render("sim-model", messages), max_tokens=50,
            min_tokens=0, sampling=Sampling(0), request_id="whole",
        )  # fmt: skip
        run = AttemptRun(
            session=session, node=node, number=1, kind="first", grade=None, generation=generation,
            known="", overseer=Overseer(), booking=Booking(Fleet(), node), turn=Turns().next(), prompt_size=1,
        )  # fmt: skip
        running = asyncio.create_task(run.run())
        await until(lambda: bool(session.finish_reason))
        strike(run)
        assert await running == expected_answer(messages, dialect=dialect_name).finish_reason
        await client.aclose()
