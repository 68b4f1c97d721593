"""One line a log record: ``2026-11-29T16:17:00.123Z INFO streaming.runtime session ended session=…``."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime

# Line ends of all kinds, terminals' controls, marks of direction, halves of characters.
_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """What was passed as ``extra=`` follows the message as ``key=value``; a traceback comes below."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        message = _one_line(record.getMessage())
        fields = "".join(
            f" {key}={_quoted(value)}"
            for key, value in record.__dict__.items()
            if key not in _STANDARD
        )
        line = f"{time}Z {record.levelname} {record.name} {message}{fields}"
        if record.exc_info:
            # Indented, so that no words of an exception pass for a record.
            traceback = self.formatException(record.exc_info).split("\n")
            line += "".join(f"\n  {_one_line(below)}" for below in traceback)
        return line


def _quoted(value: object) -> str:
    text = str(value)
    if text and not set(text) & set(' "=') and not _CONTROLS.search(text):
        return text
    return _one_line(json.dumps(text, ensure_ascii=False))


def _one_line(text: str) -> str:
    """``text`` with what ends a line, moves a cursor or turns the direction of writing spelled out."""
    return _CONTROLS.sub(lambda found: _spelled(found.group()), text)


def _spelled(control: str) -> str:
    if control == "\n":
        return "\\n"
    return f"\\u{ord(control):04x}"  # as JSON has it
