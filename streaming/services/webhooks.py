"""Webhooks of tenants: their endpoints, their secrets, and what they are told.

What happens to sessions is written down by the database itself (``migrations.0005_webhooks``); others
have something told by ``enqueue``. Sending is ``services.webhook_deliveries``.
"""

from __future__ import annotations

import enum
import json
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.crypto import salted_hmac

from streaming.core import signing
from streaming.models import WebhookDelivery, WebhookEndpoint
from streaming.services import audit
from streaming.services.incidents import close_incident, open_incident
from streaming.services.outbound import AddressRefused, check_url
from streaming.services.refused import Refused
from streaming.services.sql import rows

FAILED = "webhook_failed"
"""The kind of the incident of an endpoint that was not told everything."""

OVERLAP = timedelta(hours=24)
"""For so long after a rotation messages are signed with the former secret, too."""


class Kind(enum.Enum):
    """What an endpoint may be told."""

    COMPLETED = "session.completed"  # completed, or stopped by whoever may
    INTERRUPTED = "session.interrupted"  # failed, abandoned or cancelled: it will not be whole
    SUSPENDED = "session.suspended"  # its reader left, or an error broke it off; told once
    FLAGGED = "session.flagged"  # by a content rule that flags or stops; told once
    LIMIT_NEAR = "limit.near"  # a threshold of a quota or a budget


TEST = "test"
"""Sent on demand, whatever the endpoint wants to be told."""


def enqueue(
    kind: Kind, tenant_id: int, data: dict[str, Any], session_id: UUID | None = None
) -> None:
    """Have the tenant's endpoints told, in the transaction of the caller; of a session once each.

    ``data`` goes into JSON, and to the tenant's own servers: no content, nothing personal.
    """
    rows(
        "SELECT streaming_enqueue_webhook(%s, %s, %s, %s::jsonb)",
        kind.value, tenant_id, session_id, json.dumps(data),
    )  # fmt: skip


def enqueue_test(endpoint: WebhookEndpoint, by: str) -> WebhookDelivery:
    """A message that says nothing, for one endpoint. Raises ``Refused`` where it is switched off."""
    if not endpoint.is_active:
        raise Refused(f"{endpoint}: it is switched off.")
    at = timezone.now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
    payload = {"type": TEST, "timestamp": at, "data": {}}
    with transaction.atomic():
        delivery = WebhookDelivery.objects.create(endpoint=endpoint, kind=TEST, payload=payload)
        _told("test", endpoint, by)
    return delivery


def check(endpoint: WebhookEndpoint) -> None:
    """Raises ``Refused`` for what could never be told anything."""
    try:
        check_url(endpoint.url)
    except AddressRefused as exc:
        raise Refused(f"{endpoint.url}: {exc}.") from exc
    known = {kind.value for kind in Kind}
    if unknown := [one for one in endpoint.events if one not in known]:
        raise Refused(f"There are no events {unknown}; there are {', '.join(sorted(known))}.")


@transaction.atomic
def add(endpoint: WebhookEndpoint, *, by: str) -> str:
    """Save a new one; its secret, which nobody is shown again. Raises ``Refused``."""
    check(endpoint)
    endpoint.save()
    _told("create", endpoint, by, url=endpoint.url, events=endpoint.events)
    return secret_of(endpoint)


@transaction.atomic
def change(endpoint: WebhookEndpoint, *, by: str) -> None:
    """Save what was changed, and try it again at once. Raises ``Refused``."""
    check(endpoint)
    before = WebhookEndpoint.objects.select_for_update(no_key=True).get(pk=endpoint.pk)
    endpoint.failing_since = endpoint.retry_at = None
    endpoint.save(update_fields=["url", "events", "failing_since", "retry_at"])
    values = [{"url": one.url, "events": one.events} for one in (before, endpoint)]
    _told("change", endpoint, by, **audit.changes(*values))


@transaction.atomic
def switch(endpoint: WebhookEndpoint, *, on: bool, by: str, why: str = "") -> None:
    """Turn it on or off. What waits for it waits on; what happens meanwhile is not kept for it."""
    endpoint.is_active = on
    endpoint.failing_since = endpoint.retry_at = None
    endpoint.disabled_reason = "" if on else why
    endpoint.save(update_fields=["is_active", "failing_since", "retry_at", "disabled_reason"])
    if on:
        close_incident(FAILED, subject_of(endpoint))
    _told("enable" if on else "disable", endpoint, by, why=why)


@transaction.atomic
def rotate(endpoint: WebhookEndpoint, *, by: str) -> str:
    """A new secret, which is returned; the former one signs beside it for ``OVERLAP``.

    Raises ``Refused`` while that lasts: asked twice, it would end the secret that receivers have.
    """
    stored = WebhookEndpoint.objects.select_for_update(no_key=True).get(pk=endpoint.pk)
    if until := _former_signs_until(stored):
        raise Refused(
            f"{stored}: it has a new secret already, and the former one signs beside it until"
            f" {until:%Y-%m-%d %H:%M} UTC. It can have another then, or when the former one is ended."
        )
    stored.secret_version += 1
    stored.rotated_at = timezone.now()
    stored.save(update_fields=["secret_version", "rotated_at"])
    _told("rotate", stored, by, version=stored.secret_version)
    return secret_of(stored)


@transaction.atomic
def end_former_secret(endpoint: WebhookEndpoint, *, by: str) -> None:
    """Sign with the present secret only. Raises ``Refused`` where that is so already."""
    stored = WebhookEndpoint.objects.select_for_update(no_key=True).get(pk=endpoint.pk)
    if not _former_signs_until(stored):
        raise Refused(f"{stored}: no former secret signs any more.")
    stored.rotated_at = None
    stored.save(update_fields=["rotated_at"])
    _told("end_former_secret", stored, by, version=stored.secret_version)


@transaction.atomic
def send_again(delivery: WebhookDelivery, *, by: str) -> None:
    """As if it were new, with the same id. Raises ``Refused`` where its endpoint is switched off."""
    if not delivery.endpoint.is_active:
        raise Refused(f"{delivery.endpoint}: it is switched off.")
    now = timezone.now()
    WebhookDelivery.objects.filter(pk=delivery.pk).update(
        state=WebhookDelivery.State.WAITING, tries=0, created_at=now, next_try_at=now
    )
    WebhookEndpoint.objects.filter(pk=delivery.endpoint_id).update(retry_at=None)
    _told("send_again", delivery.endpoint, by, delivery=delivery.pk, kind=delivery.kind)


def secret_of(endpoint: WebhookEndpoint) -> str:
    """Its present secret, as its receiver configures it (``whsec_…``)."""
    return signing.shown(_secret(endpoint.pk, endpoint.secret_version))


def secrets(endpoint: WebhookEndpoint) -> list[bytes]:
    """What its messages are signed with: the present secret, and for a while the one before it; by
    each SECRET_KEY."""
    present = endpoint.secret_version
    versions = [present]
    if _former_signs_until(endpoint):
        versions.append(present - 1)
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return [_secret(endpoint.pk, version, key) for key in keys for version in versions]


def subject_of(endpoint: WebhookEndpoint) -> str:
    """What audit log and incidents call it."""
    return f"webhook:{endpoint.pk}"


def fail(endpoint: WebhookEndpoint, deliveries: int, said: str) -> None:
    """Tell operators that it was not told everything."""
    data = {"url": endpoint.url, "deliveries": deliveries, "said": said}
    open_incident(FAILED, subject_of(endpoint), data=data)


def _former_signs_until(endpoint: WebhookEndpoint) -> datetime | None:
    """None: it does not sign any more, or there is none."""
    if endpoint.rotated_at is None:
        return None
    until = endpoint.rotated_at + OVERLAP
    return until if until > timezone.now() else None


def _secret(endpoint_id: int, version: int, key: str | None = None) -> bytes:
    what = f"{endpoint_id}:{version}"
    return salted_hmac("unbroken.webhook", what, secret=key, algorithm="sha256").digest()


def _told(what: str, endpoint: WebhookEndpoint, by: str, **data: Any) -> None:
    audit.announce(
        f"webhook.{what}",
        actor=by,
        subject=subject_of(endpoint),
        tenant_id=endpoint.tenant_id,
        **data,
    )
