"""Evidence from a real gateway whose engine is killed, against what SQL says directly."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.chaos import evidence, report
from bench.chaos.gauges import Gauges
from bench.chaos.records import FaultRecord, StreamRecord, append
from tests.bench.chaos.made import run
from tests.durability.reader import Readers, Seen, question, until
from tests.engine_simulator.process import SimulatorProcess

STREAMS, TOKENS = 8, 60


@pytest.fixture
def records_of(start_stack, tmp_path):
    """Two engines, one of which is killed under eight readers; the run's directory, its stack."""

    async def read(stack, victim: SimulatorProcess) -> tuple[list[Seen], FaultRecord]:
        key = stack.api_key()
        async with Readers(stack.gateway().url, key) as readers:
            seen = [Seen(question(f"chaos {n}", TOKENS)) for n in range(STREAMS)]
            asked = [
                asyncio.create_task(readers.ask(one.messages, seen=one)) for one in seen
            ]  # fmt: skip
            await until(lambda: all(len(one.tokens) > 5 for one in seen), 60)
            at = time.time()
            victim.kill()
            victim.restart()
            fault = FaultRecord(
                kind="node_kill", target="a", at=at, until=time.time(), streams=STREAMS
            )
            await asyncio.gather(*asked)
        return seen, fault

    with SimulatorProcess(pace=20) as a, SimulatorProcess(pace=20) as b:
        stack = start_stack(engine_nodes=[f"a=vllm+{a.url}", f"b=vllm+{b.url}"])
        engines = {"a": a.url, "b": b.url}
        began = time.time()
        with Gauges(tmp_path, engines):
            seen, fault = asyncio.run(read(stack, a))
        records = [_record(n, one) for n, one in enumerate(seen)]
        append(tmp_path / "streams.jsonl", records)
        append(tmp_path / "faults.jsonl", [fault])
        told = run(began=began, ended=time.time())
        (tmp_path / "run.json").write_text(json.dumps(asdict(told)), encoding="utf-8")
        evidence.collect(tmp_path, stack.sql, engines, records, patience=60)
        yield tmp_path, stack, records


def _record(number: int, seen: Seen) -> StreamRecord:
    offset = time.time() - time.monotonic()
    return StreamRecord(
        index=number, mode="unbroken", reader="plain", transport="sse", session=seen.session_id,
        sent=seen.asked_at + offset, first=seen.token_times[0] + offset,
        ended=seen.token_times[-1] + offset, asked=TOKENS, tokens=seen.answer.completion_tokens,
        whole=seen.is_whole,
    )  # fmt: skip


def test_evidence_is_what_the_database_says(records_of: tuple, monkeypatch) -> None:
    directory: Path
    directory, stack, records = records_of
    text = report.write(directory)
    figures = json.loads((directory / "report.json").read_text("utf-8"))["figures"]

    [[failovers, read]] = stack.sql(
        "SELECT count(*) FILTER (WHERE kind = 'failover'), sum(generated_tokens) FROM streaming_attempt"
    )
    assert figures["failovers"]["kinds"].get("failover", 0) == failovers > 0
    assert figures["tokens"]["generated"] == read
    [[billed]] = stack.sql("SELECT sum(output_tokens) FROM billing_settlement")
    plain = figures["tokens"]["billing"]["plain"]
    assert (plain["billed"], plain["streams"]) == (billed, STREAMS)
    assert plain["equal"] == STREAMS, text
    assert (figures["tokens"]["without_line"], figures["tokens"]["missing"]) == (0, 0)
    assert figures["interruptions"]["plain_engines"]["hits"] == 0, text
    assert figures["recovery_ms"]["node_kill"]["count"] == failovers
    [[slowest]] = stack.sql("SELECT max(recovery_ms) FROM streaming_attempt")
    # Beyond what the gateway says itself: the way from its first token into the database.
    assert figures["recovery_ms"]["node_kill"]["max"] > slowest - 50
    assert figures["engines"]["b"]["generated"] > 0
    assert figures["gateway"]["strangers"] == {"sessions": 0, "generated": 0}

    # In pages of three, each session is there once.
    monkeypatch.setattr(evidence, "PAGE", 3)
    evidence.collect(directory, stack.sql, {}, records, patience=0)
    found = list(evidence.sessions(directory))
    assert sorted(one.session for one in found) == sorted(one.session for one in records)
    attempts = stack.sql("SELECT count(*) FROM streaming_attempt")[0][0]
    assert sum(len(one.attempts) for one in found) == attempts


def test_without_a_database(tmp_path: Path) -> None:
    evidence.collect(tmp_path, None, {"gone": "http://127.0.0.1:9"}, [])
    told = evidence.evidence(tmp_path)
    assert told["gateway"] is None
    assert told["engines"] == {"gone": None}
