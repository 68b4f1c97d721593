"""What a client asks for of the way it is sent things: ``?heartbeat=``, ``?coalesce=``, ``?quality=1``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from streaming.consumers.heartbeat import parsed_interval, wanted_interval
from streaming.consumers.request import Request
from streaming.core.levels import MAX_COALESCE_MS
from streaming.errors import InvalidRequest
from streaming.runtime.quality import Wishes

MAX_RTT_MS = 600_000.0
MAX_BYTES_PER_SECOND = 1e12


def wishes_of(request: Request) -> Wishes:
    """Of a request: its query, else its headers. Raises ``InvalidRequest``."""
    coalesce = request.query.get("coalesce") or request.header("x-unbroken-coalesce")
    return Wishes(
        heartbeat=wanted_interval(request),
        coalesce=None if coalesce is None else _milliseconds(coalesce),
    )


def wants_quality(query: Mapping[str, str]) -> bool:
    """Whether it wants to be told of the quality of its connection."""
    return query.get("quality") == "1"


def update(wishes: Wishes, message: Mapping[str, Any]) -> None:
    """Take over what a ``wish`` names; null takes a wish back. Raises ``InvalidRequest``."""
    fresh = Wishes(wishes.heartbeat, wishes.coalesce, wishes.rtt_ms, wishes.bytes_per_second)
    if "heartbeat" in message:
        value = message["heartbeat"]
        fresh.heartbeat = None if value is None else parsed_interval(_plain(value))
    if "coalesce" in message:
        value = message["coalesce"]
        fresh.coalesce = None if value is None else _milliseconds(_plain(value))
    if "rtt_ms" in message:
        fresh.rtt_ms = _measured(message["rtt_ms"], "rtt_ms", MAX_RTT_MS)
    if "bytes_per_second" in message:
        most = MAX_BYTES_PER_SECOND
        fresh.bytes_per_second = _measured(message["bytes_per_second"], "bytes_per_second", most)
    wishes.heartbeat, wishes.coalesce = fresh.heartbeat, fresh.coalesce
    wishes.rtt_ms, wishes.bytes_per_second = fresh.rtt_ms, fresh.bytes_per_second


def _plain(value: Any) -> str:
    return "" if isinstance(value, bool) else str(value)


def _milliseconds(text: str) -> int:
    if not text.isdecimal() or len(text) > 4 or int(text) > MAX_COALESCE_MS:
        raise InvalidRequest(
            f"coalesce must be 0 to {MAX_COALESCE_MS} milliseconds.", param="coalesce"
        )
    return int(text)


def _measured(value: Any, name: str, most: float) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 <= value <= most:
        raise InvalidRequest(f"{name} must be a number, 0 to {most:g}.", param=name)
    return float(value)
