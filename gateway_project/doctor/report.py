"""Findings for people, and for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable

from gateway_project.doctor.examination import Found
from gateway_project.doctor.finding import Level

MARKS = {Level.OK: "ok", Level.NOTE: "note", Level.WARNING: "WARNING", Level.FAILURE: "FAILURE"}
_COLOURS = {Level.OK: "32", Level.NOTE: "36", Level.WARNING: "33", Level.FAILURE: "31;1"}
_NAME = 22
_MARK = 9


class TextReport:
    """Line by line as findings come in; headed by their subjects. ``width`` in characters."""

    def __init__(self, *, colour: bool, width: int = 100) -> None:
        self._colour = colour
        self._width = max(width, 60)
        self._subject = ""
        self.counts = dict.fromkeys(Level, 0)

    def lines(self, found: Found) -> list[str]:
        finding = found.finding
        self.counts[finding.level] += 1
        head = []
        if found.subject != self._subject:
            head = (
                ["", found.subject.capitalize()] if self._subject else [found.subject.capitalize()]
            )
            self._subject = found.subject
        indent = " " * (2 + _MARK + _NAME)
        first, *more = self._wrapped(finding.seen) or [""]
        mark = self._painted(finding.level, MARKS[finding.level].ljust(_MARK))
        body = [
            f"  {mark}{finding.check.ljust(_NAME - 1)} {first}",
            *(indent + one for one in more),
        ]
        if finding.level is not Level.OK:
            body += [f"{indent}{one}" for one in self._wrapped(finding.advice, first="→ ")]
            if finding.level is not Level.NOTE:
                body.append(f"{indent}  {finding.doc}")
        return head + body

    def summary(self) -> str:
        counts = ", ".join(
            f"{self._painted(level, f'{self.counts[level]} {level}')}" for level in reversed(Level)
        )
        return f"\n{counts}"

    def _wrapped(self, text: str, first: str = "") -> list[str]:
        return textwrap.wrap(
            text,
            self._width - (2 + _MARK + _NAME),
            initial_indent=first,
            subsequent_indent=" " * len(first),
            break_long_words=False,
            break_on_hyphens=False,
        )

    def _painted(self, level: Level, text: str) -> str:
        return f"\x1b[{_COLOURS[level]}m{text}\x1b[0m" if self._colour else text


def as_json(found: Iterable[Found], worst: Level) -> str:
    """``{"level": …, "findings": [{"subject", "check", "level", "seen", "advice", "doc"}, …]}``."""
    findings = [
        {
            "subject": one.subject,
            "check": one.finding.check,
            "level": one.finding.level.value,
            "seen": one.finding.seen,
            "advice": one.finding.advice,
            "doc": one.finding.doc,
        }
        for one in found
    ]
    return json.dumps({"level": worst.value, "findings": findings}, indent=1, ensure_ascii=False)
