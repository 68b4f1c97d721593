"""``POST /v1/sessions/{id}/report``: how the answer looked from the browser's side."""

from __future__ import annotations

from typing import Any

import orjson

from streaming.consumers.base import StreamConsumer
from streaming.consumers.openai import request_principal
from streaming.consumers.request import Request
from streaming.consumers.sessions import session_id_of
from streaming.errors import InvalidRequest
from streaming.runtime.gateway import current
from streaming.services.client_reports import TRANSPORTS, store_report

_RANGES = {
    "first_paint_ms": (0, 86_400_000),
    "largest_gap_ms": (0, 86_400_000),
    "reconnects": (0, 1_000_000),
    "rtt_ms": (0, 86_400_000),
    "bytes_per_second": (0, 10**12),
    "drift_ms": (-(10**12), 10**12),
}


class ReportConsumer(StreamConsumer):
    """204. Numbers and the transport's name, nothing else: no text of a browser is stored."""

    methods = ("POST",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        principal = await request_principal(gateway, request)
        session_id = session_id_of(request)
        await store_report(gateway, principal, session_id, parsed_report(request.body))
        await self.respond_empty(204)


def parsed_report(body: bytes) -> dict[str, Any]:
    """The fields that are known, whole numbers. Raises ``InvalidRequest``."""
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"The request body is not valid JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise InvalidRequest("The report must be a JSON object.")
    report: dict[str, Any] = {}
    for name, (least, most) in _RANGES.items():
        number = value.get(name)
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise InvalidRequest(f"{name} must be a number.", param=name)
        if not least <= number <= most:
            raise InvalidRequest(f"{name} must be {least} to {most}.", param=name)
        report[name] = round(number)
    transport = value.get("transport")
    if transport is not None:
        if transport not in TRANSPORTS:
            known = ", ".join(TRANSPORTS)
            raise InvalidRequest(f"transport must be one of {known}.", param="transport")
        report["transport"] = transport
    if not report:
        raise InvalidRequest("The report has none of the known fields.")
    return report
