"""How periodic tasks went: one row each, which gateways, metrics and the admin look at."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from django.db.models import F
from django.utils import timezone

from streaming.metrics import fold
from streaming.models import TaskRun

logger = logging.getLogger(__name__)

Result = dict[str, Any]


def recorded(name: str) -> Callable[[Callable[[], Result]], Callable[[], Result]]:
    """Have every call noted under ``name``: its start, its end, and its result (JSON) or error.

    What the function raises is noted and raised again.
    """

    def decorate(function: Callable[[], Result]) -> Callable[[], Result]:
        @functools.wraps(function)
        def run() -> Result:
            started = timezone.now()
            TaskRun.objects.bulk_create(
                [TaskRun(name=name, started_at=started)],
                update_conflicts=True,
                unique_fields=["name"],
                update_fields=["started_at"],
            )
            row = TaskRun.objects.filter(name=name)
            try:
                result = function()
            except Exception as exc:
                row.update(
                    finished_at=timezone.now(),
                    runs=F("runs") + 1,
                    failures=F("failures") + 1,
                    error=f"{type(exc).__name__}: {exc}"[:500].replace("\x00", "\ufffd"),
                )
                raise
            finally:
                fold()  # a worker has no second hand of its own
            ended = timezone.now()
            values: dict[str, Any] = {"error": ""}
            if "skipped" not in result:  # what the other run had to say stands
                values["result"] = result
            row.update(finished_at=ended, succeeded_at=ended, runs=F("runs") + 1, **values)
            did = {key: value for key, value in result.items() if value}
            level = logging.INFO if did else logging.DEBUG
            seconds = (ended - started).total_seconds()
            logger.log(level, "%s: %s in %.2f s", name, did or "nothing to do", seconds)
            return result

        return run

    return decorate
