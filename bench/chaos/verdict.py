"""Whether a run kept the promise: what makes ``python -m bench.chaos`` end with 1."""

from __future__ import annotations

import json
from pathlib import Path

from bench.chaos import evidence, records
from bench.chaos.records import StreamRecord


def broken_promises(directory: Path) -> list[str]:
    """One line for each; none when all is well."""
    found = []
    sessions = {one.session: one for one in evidence.sessions(directory)}
    for record in records.streams(directory):
        if record.mode != "unbroken":
            continue
        if record.reader != "plain" and not record.whole and not record.left:
            found.append(f"stream {record.index} was interrupted: {record.fault} {record.session}")
        session = sessions.get(record.session)
        if session is not None and (wrong := _billed_wrongly(record, session)):
            found.append(f"stream {record.index} was billed wrongly: {wrong} {record.session}")
    told = json.loads((directory / "run.json").read_text("utf-8"))
    if wrong_prefixes := told["wrong_prefixes"]:
        found.append(f"{wrong_prefixes} continuations were no beginning of the engine's answer")
    return found


def _billed_wrongly(record: StreamRecord, session: evidence.SessionEvidence) -> str:
    """Who acknowledges pays for exactly that; the others for no more than the log and they prove."""
    billed = session.billed
    if billed is None:
        return "not settled"
    if record.reader == "acking" and record.whole and billed != record.tokens:
        return f"{billed} for {record.tokens} acknowledged tokens"
    if billed < record.acked:
        return f"{billed}, fewer than the {record.acked} acknowledged"
    if billed > max(session.taken, session.cursor, session.acked):
        return f"{billed}, more than anything proves"
    return ""
