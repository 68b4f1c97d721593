"""Sinks at a receiver, and runs of the delivery."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from billing.models import EventDelivery, UsageSink
from billing.services.deliveries import deliver_usage_events
from billing.services.sinks import add_sink
from tests.billing.events.receiver import Receiver


def hook(receiver: Receiver, name: str = "hook", **values: Any) -> UsageSink:
    return add_sink(name=name, url=values.pop("url", receiver.url), actor="user:pat", **values)


def run() -> tuple[int, int, int]:
    """Deliver what is due: delivered, not delivered, given up."""
    result = deliver_usage_events()
    return result["delivered"], result["unsuccessful"], result["given_up"]


def sooner() -> None:
    """As if all pauses were over."""
    UsageSink.objects.update(retry_at=None)
    EventDelivery.objects.update(next_at=timezone.now())
