"""Two nodes of one dialect behind one gateway, and what was recorded of the streams on them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from tests.durability.reader import Readers, Seen, question, until
from tests.durability.stored import stored_log
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack


class Attempt(NamedTuple):
    """One row of the attempts of some streams."""

    session_id: str
    number: int
    kind: str
    node: str
    end_reason: str
    grade: str
    first_seq: int | None
    last_seq: int | None
    discarded: int


def nodes_of(**nodes: SimulatorProcess) -> list[str]:
    """As ENGINE_NODES has them."""
    return [f"{name}={node.dialect}+{node.url}" for name, node in nodes.items()]


@dataclass(frozen=True, slots=True)
class Pair:
    """``bad`` is the node that faults strike first; ``good`` the one that is left."""

    stack: Stack
    bad: SimulatorProcess
    good: SimulatorProcess
    key: str

    @property
    def nodes(self) -> tuple[SimulatorProcess, SimulatorProcess]:
        return self.bad, self.good

    def readers(self) -> Readers:
        return Readers(self.stack.gateway().url, self.key)

    @asynccontextmanager
    async def streams(
        self, count: int, text: str, tokens: int, alphabet: str = "mixed"
    ) -> AsyncIterator[tuple[list[Seen], asyncio.Future[list[Seen]]]]:
        """``count`` streams of which all have begun, and the future of their ends."""
        seen = [Seen(question(f"{text} {number}", tokens, alphabet)) for number in range(count)]
        async with self.readers() as readers:
            ends = asyncio.gather(*(readers.ask(s.messages, seen=s) for s in seen))
            try:
                await until(lambda: all(s.tokens or s.error for s in seen))
                yield seen, ends
            finally:
                ends.cancel()
                await asyncio.gather(ends, return_exceptions=True)

    @property
    def running(self) -> int:
        """Requests under way at both engines."""
        return sum(node.stats()["running"] for node in self.nodes)

    @property
    def healthy(self) -> int:
        """How many nodes the gateway holds for healthy."""
        query = "SELECT count(*) FROM streaming_inferencenode WHERE health = 'up'"
        return self.stack.sql(query)[0][0]

    async def mend(self) -> None:
        """Both nodes alive, healthy, without faults, and each given its half of the streams."""
        for node in self.nodes:
            if node.is_alive:
                node.cont()
                node.clear_faults()
            else:
                node.restart()
        await until(lambda: self.healthy == 2)
        async with self.readers() as readers:
            async with asyncio.timeout(20):
                # One that has failed gets few at first, and more with each that succeeds.
                while True:
                    before = [node.stats()["started"] for node in self.nodes]
                    await readers.ask_many(10, "warm", 2, "plain")
                    after = [node.stats()["started"] for node in self.nodes]
                    if min(b - a for a, b in zip(before, after, strict=True)) >= 4:
                        return

    def attempts(self, seen: list[Seen]) -> list[Attempt]:
        """Of these streams, in order."""
        rows = self.stack.sql(
            "SELECT session_id::text, number, kind, node_name, end_reason, seam_grade, first_seq,"
            " last_seq, discarded_tokens FROM streaming_attempt"
            " WHERE session_id = ANY(%s::uuid[]) ORDER BY session_id, number",
            [reader.session_id for reader in seen],
        )
        return [Attempt(*row) for row in rows]

    def events(self, seen: list[Seen]) -> Counter[str]:
        """How many events of each kind these streams have."""
        rows = self.stack.sql(
            "SELECT kind FROM streaming_sessionevent WHERE session_id = ANY(%s::uuid[])",
            [reader.session_id for reader in seen],
        )
        return Counter(kind for (kind,) in rows)

    def causes(self, seen: list[Seen]) -> set[str]:
        """Of the failures of these streams on the bad node."""
        rows = self.stack.sql(
            "SELECT DISTINCT data ->> 'cause' FROM streaming_sessionevent WHERE kind = 'recovering'"
            " AND data ->> 'node' = 'bad' AND session_id = ANY(%s::uuid[])",
            [reader.session_id for reader in seen],
        )
        return {cause for (cause,) in rows}

    def session(self, seen: Seen) -> tuple[str, str, int]:
        """State, error code and failovers."""
        return self.stack.sql(
            "SELECT state, error_code, failovers FROM streaming_streamsession WHERE id = %s",
            seen.session_id,
        )[0]


def assert_all_whole(stack: Stack, seen: list[Seen]) -> None:
    """Each got the answer without any fault, and the stored log says the same."""
    troubles = {reader.session_id: reader.trouble for reader in seen if not reader.is_whole}
    assert not troubles, troubles
    for reader in seen:
        log = stored_log(stack, reader.session_id)
        assert log.text == reader.text
        assert log.terminal is not None
        assert log.terminal["state"] == "completed"
        assert log.terminal["finish_reason"] == reader.finish_reason


def told(attempts: list[Attempt]) -> str:
    """What to say when they are not as expected."""
    return ", ".join(
        f"{count}× {kind} on {node}: {reason}"
        for (kind, node, reason), count in Counter(
            (row.kind, row.node, row.end_reason) for row in attempts
        ).items()
    )
