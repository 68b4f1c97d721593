"""What ``serve`` tells the operator: one line at a time, on stdout; as JSON where logs are."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

from django.conf import settings


def say(name: str, words: str) -> None:
    if settings.LOG_FORMAT == "json":
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        entry = {"time": time, "level": "INFO", "logger": "serve", "message": words, "part": name}
        sys.stdout.write(json.dumps(entry) + "\n")
    else:
        sys.stdout.write(f"{name:<10} {words}\n")
    sys.stdout.flush()
