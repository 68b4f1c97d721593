"""What the doctor has found: one object a finding, whatever it was looking at."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.StrEnum):
    OK = "ok"
    NOTE = "note"  # worth knowing; nothing has to be done
    WARNING = "warning"  # works today, and will hurt some day
    FAILURE = "failure"  # a promise of the gateway is broken, or will be under load


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``check``: a short stable name. ``seen``: what was found, in words. ``advice``: what to do.

    ``doc``: where more is written, as ``docs/page.md#section``; empty: the doctor's own page.
    """

    check: str
    level: Level
    seen: str
    advice: str = ""
    doc: str = ""


def ok(check: str, seen: str) -> Finding:
    return Finding(check=check, level=Level.OK, seen=seen)


def note(check: str, seen: str, advice: str = "", doc: str = "") -> Finding:
    return Finding(check=check, level=Level.NOTE, seen=seen, advice=advice, doc=doc)


def warning(check: str, seen: str, advice: str, doc: str = "") -> Finding:
    return Finding(check=check, level=Level.WARNING, seen=seen, advice=advice, doc=doc)


def failure(check: str, seen: str, advice: str, doc: str = "") -> Finding:
    return Finding(check=check, level=Level.FAILURE, seen=seen, advice=advice, doc=doc)


def left_out(check: str, why: str) -> Finding:
    """A check that could not be made, where that alone says nothing against the deployment."""
    return note(check, f"left out: {why}")
