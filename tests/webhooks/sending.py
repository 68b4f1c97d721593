"""Endpoints at a receiver, sessions to tell of, and runs of the delivery."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from streaming.models import StreamSession, Tenant, WebhookDelivery, WebhookEndpoint
from streaming.services import webhooks
from streaming.services.webhook_deliveries import deliver_webhooks
from tests.billing.events.receiver import Receiver
from tests.billing.rows import Story, add_tenant

BY = "user:pat"


def hook(
    receiver: Receiver | None, *events: str, tenant: Tenant | None = None, url: str = ""
) -> WebhookEndpoint:
    """An endpoint of ``acme``, or of another tenant."""
    endpoint = WebhookEndpoint(
        tenant=tenant or add_tenant(),
        url=url or (receiver.url if receiver else ""),
        events=list(events),
    )
    webhooks.add(endpoint, by=BY)
    return endpoint


def ended(state: str = "completed", cause: str = "", **columns: Any) -> StreamSession:
    """A session that has just ended so."""
    story = Story(**columns)
    story.attempt()
    story.tokens(5)
    story.end(state, cause)
    return story.session


def run() -> tuple[int, int, int]:
    """Deliver what is due: delivered, not delivered, given up."""
    result = deliver_webhooks()
    return result["delivered"], result["unsuccessful"], result["given_up"]


def sooner() -> None:
    """As if all pauses were over."""
    WebhookEndpoint.objects.update(retry_at=None)
    WebhookDelivery.objects.update(next_try_at=timezone.now())


def told() -> list[tuple[str, Any]]:
    """Kind and session of everything that is to be told, or was."""
    rows = WebhookDelivery.objects.order_by("created_at", "kind")
    return list(rows.values_list("kind", "session_id"))
