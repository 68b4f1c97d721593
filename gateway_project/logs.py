"""One line a log record: ``2026-11-29T16:17:00.123Z INFO streaming.runtime session ended session=…``."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """What was passed as ``extra=`` follows the message as ``key=value``; a traceback comes below."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        message = record.getMessage().replace("\n", "\\n")
        fields = "".join(
            f" {key}={_quoted(value)}"
            for key, value in record.__dict__.items()
            if key not in _STANDARD
        )
        line = f"{time}Z {record.levelname} {record.name} {message}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _quoted(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "=\n') else text
