"""How each kind of collector wants a usage event, and what its answer means.

Sources: CloudEvents 1.0 and its HTTP binding; OpenMeter, "Ingest events"; Lago, "Send usage"; Stripe,
"Meter events" (no negative values but by its own cancellation, none older than 35 days).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

CLOUD_EVENT = "application/cloudevents+json; charset=utf-8"
STRIPE_LOOKS_BACK = timedelta(days=35)
STRIPE_VALUES = ("total_tokens", "input_tokens", "output_tokens")

OPTIONS: dict[str, dict[str, str | None]] = {
    "webhook": {},
    "openmeter": {},
    "lago": {"code": "unbroken_tokens", "subscription": ""},
    "stripe": {"event_name": "unbroken_tokens", "value": "total_tokens", "customer": None},
}
"""By kind, what may be said of a sink, with its default; None: it must be said."""


class NotDeliverable(Exception):
    """This collector has no way to take this event. The message says why."""


@dataclass(frozen=True, slots=True)
class Message:
    """A POST request."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Verdict(enum.Enum):
    """What became of a message."""

    TAKEN = enum.auto()
    EVENT_REFUSED = enum.auto()  # this one; others may be taken
    SINK_FAILING = enum.auto()  # nothing would be taken now
    SINK_GONE = enum.auto()  # nor ever again


def checked_options(kind: str, options: Mapping[str, Any]) -> dict[str, str]:
    """What is said of a sink of this kind. Raises ``ValueError`` naming what is wrong."""
    known = OPTIONS[kind]
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"{kind} has no option {name!r}; it has {', '.join(known) or 'none'}")
        if not isinstance(value, str) or not value:
            raise ValueError(f"the option {name} must be a text")
    for name, default in known.items():
        if default is None and name not in options:
            raise ValueError(f"{kind} needs the option {name}")
    if kind == "stripe" and options.get("value", "total_tokens") not in STRIPE_VALUES:
        raise ValueError(f"the option value must be one of {', '.join(STRIPE_VALUES)}")
    return dict(options)


def message(kind: str, options: Mapping[str, str], event: str, now: datetime) -> Message:
    """The message for one event, a CloudEvent as JSON text. Raises ``NotDeliverable``."""
    chosen = {**OPTIONS[kind], **options}
    match kind:
        case "lago":
            return _lago(chosen, json.loads(event))
        case "stripe":
            return _stripe(chosen, json.loads(event), now)
        case _:
            return Message(event.encode(), {"content-type": CLOUD_EVENT})


def verdict(kind: str, status: int, text: str) -> Verdict:
    """What the answer of a collector means. Redirects are not followed: whoever moves says so."""
    if 200 <= status < 300 or _has_it_already(kind, status, text):
        return Verdict.TAKEN
    if status == 410:
        return Verdict.SINK_GONE
    # Any other 4xx is about the address, the credential or the load.
    if status in (400, 409, 413, 415, 422):
        return Verdict.EVENT_REFUSED
    return Verdict.SINK_FAILING


def _has_it_already(kind: str, status: int, text: str) -> bool:
    """Sent before by somebody who was killed before it could note so."""
    return (kind == "lago" and status == 422 and "value_already_exist" in text) or (
        kind == "stripe" and status == 400 and "already exists with identifier" in text
    )


def _lago(options: Mapping[str, str | None], event: dict[str, Any]) -> Message:
    body = {
        "event": {
            "transaction_id": event["id"],
            "external_subscription_id": options["subscription"] or event["subject"],
            "code": options["code"],
            "timestamp": _seconds(event),
            "properties": {
                name: value for name, value in event["data"].items() if value is not None
            },
        }
    }
    return Message(json.dumps(body).encode(), {"content-type": "application/json"})


def _stripe(options: Mapping[str, str | None], event: dict[str, Any], now: datetime) -> Message:
    value = event["data"].get(options["value"])
    if value is None:
        raise NotDeliverable("Stripe takes usage only")
    if value < 0:
        raise NotDeliverable(f"Stripe takes no negative usage ({value}): correct it there by hand")
    if now - _time(event) > STRIPE_LOOKS_BACK:
        raise NotDeliverable("Stripe takes nothing that is older than 35 days")
    form = {
        "event_name": options["event_name"],
        "identifier": event["id"],
        "timestamp": _seconds(event),
        "payload[stripe_customer_id]": options["customer"],
        "payload[value]": value,
    }
    return Message(
        urlencode(form).encode(),
        {
            "content-type": "application/x-www-form-urlencoded",
            "idempotency-key": event["id"],
        },
    )


def _time(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["time"])


def _seconds(event: dict[str, Any]) -> int:
    """Of the Unix clock, whole."""
    return int(_time(event).timestamp())
