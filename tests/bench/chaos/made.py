"""Records of a run with known answers, made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.chaos.evidence import AttemptEvidence, SessionEvidence
from bench.chaos.records import FaultKind, FaultRecord, Gap, Run, StreamRecord, append

T0 = 1_800_000_000.0


def run(**values: Any) -> Run:
    return Run(
        **{
            "seed": 7, "name": "made", "cluster": "simulator", "began": T0, "ended": T0 + 60,
            "pace": 20.0, "arguments": {}, "machine": {"date": "2026-11-30", "commit": "abc"},
            **values,
        }
    )  # fmt: skip


def stream(index: int, **values: Any) -> StreamRecord:
    """A whole answer of 100 tokens in 5 s to a plain client."""
    sent = T0 + values.pop("after", 1.0)
    return StreamRecord(
        **{
            "index": index, "mode": "unbroken", "reader": "plain", "transport": "sse",
            "session": f"s{index}", "sent": sent, "first": sent + 0.1, "ended": sent + 5.05,
            "asked": 100, "tokens": 100, "whole": True, **values,
        }
    )  # fmt: skip


def session(index: int, *attempts: AttemptEvidence, **values: Any) -> SessionEvidence:
    """Settled at 100 tokens, all taken by the reader's socket."""
    return SessionEvidence(
        **{
            "session": f"s{index}", "state": "completed", "evidence": "socket", "log": 100,
            "sent": 101, "taken": 101, "delivered": 100, "billed": 100, "lines": 1, "entries": 1,
            "attempts": list(attempts) or [attempt(1)], **values,
        }
    )  # fmt: skip


def attempt(number: int, *, after: float = 1.0, **values: Any) -> AttemptEvidence:
    """One that began ``after`` seconds, said its first token 0.1 s later, and finished."""
    started = T0 + after
    return AttemptEvidence(
        **{
            "number": number, "kind": "first" if number == 1 else "failover", "node": "a",
            "started": started, "first_token": started + 0.1, "ended": started + 5.0,
            "first_seq": 1, "end_reason": "finished", **values,
        }
    )  # fmt: skip


def broken(at: float, **values: Any) -> AttemptEvidence:
    """The first attempt, of which the gateway noticed ``at`` seconds that it had failed."""
    return attempt(
        1,
        **{
            "ended": T0 + at, "end_reason": "connection_reset", "cause": "engine_crash",
            "detection_ms": 40.0, **values,
        },
    )  # fmt: skip


def joined(at: float, number: int = 2, **values: Any) -> AttemptEvidence:
    """The attempt on the other node whose first token came ``at`` seconds; durable 5 ms later."""
    return attempt(
        number,
        **{
            "node": "b", "kind": "failover", "after": at - 0.01, "first_token": T0 + at, "durable": T0 + at + 0.005,
            "first_seq": 51, "grade": "exact", **values,
        },
    )  # fmt: skip


def fault(kind: FaultKind, target: str, at: float, seconds: float = 0.0) -> FaultRecord:
    return FaultRecord(kind=kind, target=target, at=T0 + at, until=T0 + at + seconds, streams=1)


def gap(at: float, beyond: float) -> Gap:
    """A silence that ended ``at`` seconds, at a pace of 20 tokens a second."""
    return Gap(at=T0 + at, seconds=beyond + 0.05, beyond=beyond)


def write_run(
    directory: Path,
    told: Run,
    streams: Iterable[StreamRecord] = (),
    faults: Iterable[FaultRecord] = (),
    sessions: Sequence[SessionEvidence] = (),
    evidence: dict[str, Any] | None = None,
) -> Path:
    """A run's directory, as the harness leaves it."""
    (directory / "run.json").write_text(json.dumps(asdict(told)), encoding="utf-8")
    append(directory / "streams.jsonl", streams)
    append(directory / "faults.jsonl", faults)
    lines = [json.dumps(asdict(one)) + "\n" for one in sessions]
    (directory / "sessions.jsonl").write_text("".join(lines), encoding="utf-8")
    (directory / "evidence.json").write_text(json.dumps(evidence or {}), encoding="utf-8")
    return directory
