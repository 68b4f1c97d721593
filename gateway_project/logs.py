"""Log records as lines: for people, or as JSON for whatever collects them (``LOG_FORMAT``).

    2026-11-29T16:17:00.123Z INFO streaming.runtime.ending session ended session_id=… tokens=120
    {"time": "2026-11-29T16:17:00.123Z", "level": "INFO", "logger": "streaming.runtime.ending", …}

Both say of whom a line is (``streaming.core.log_fields``), and no record of either can pass for several.
The fields are written down in ``docs/logs.md``.
"""

from __future__ import annotations

import json
import logging
import logging.config
import math
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from streaming.core import log_fields

# Line ends of all kinds, terminals' controls, marks of direction, halves of characters.
_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

# Nothing of ours writes keys into the log; an exception of others might.
_SECRETS = re.compile(r"(ub-(?:live|test)-[\w-]{4})[\w-]+|((?:[Bb]earer\s|stream_token=)\S{4})\S+")


class LineFormatter(logging.Formatter):
    """What was passed as ``extra=`` follows the message as ``key=value``; a traceback comes below."""

    def format(self, record: logging.LogRecord) -> str:
        message = _one_line(_without_secrets(record.getMessage()))
        fields = "".join(f" {key}={_quoted(value)}" for key, value in _fields(record))
        line = f"{_time(record)} {record.levelname} {record.name} {message}{fields}"
        if record.exc_info:
            # Indented, so that no words of an exception pass for a record.
            traceback = _without_secrets(self.formatException(record.exc_info)).split("\n")
            line += "".join(f"\n  {_one_line(below)}" for below in traceback)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, of ASCII only, the traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _without_secrets(record.getMessage()),
        }
        for key, value in _fields(record):
            entry.setdefault(key, _plain(value))
        if record.exc_info:
            entry["exception"] = _without_secrets(self.formatException(record.exc_info))
        return json.dumps(entry)


class Refusal(logging.Filter):
    """Of a request that was refused as it should be (403, 404) one line: no traceback, it is no fault."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR:
            record.exc_info = None
        return True


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": LineFormatter, "json": JsonFormatter}


def formatters(log_format: str) -> dict[str, Any]:
    """The ``formatters`` of ``LOGGING``. A format that is not known is text: a check tells."""
    return {"line": {"()": FORMATTERS.get(log_format, LineFormatter)}}


def configure(config: dict[str, Any]) -> None:
    """Django's ``LOGGING_CONFIG``: what Python itself would write to stderr is a record, too."""
    logging.config.dictConfig(config)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught


def _log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    logging.getLogger("uncaught").critical(
        "the process ends by an exception", exc_info=(kind, error, traceback)
    )


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """What the record was given, then of whom it is; each name once."""
    given = record.__dict__
    for key, value in given.items():
        if key not in _STANDARD:
            yield key, value
    for key, value in log_fields.fields().items():
        if key not in given:
            yield key, value


def _time(record: logging.LogRecord) -> str:
    time = datetime.fromtimestamp(record.created, UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _plain(value: object) -> object:
    """A value that every reader of JSON takes."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return _without_secrets(str(value))


def _without_secrets(text: str) -> str:
    return _SECRETS.sub(lambda found: f"{found[1] or found[2]}…", text)


def _quoted(value: object) -> str:
    text = _without_secrets(str(value))
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
