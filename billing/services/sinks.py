"""The sinks of usage events: who is told, and by which secret they know that it is us."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.crypto import salted_hmac

from billing.core.collectors import checked_options
from billing.errors import BillingError
from billing.locks import lock_sink
from billing.models import UsageSink
from billing.services import audit
from billing.services.usage_events import FAILED
from streaming.core import signing
from streaming.models import Tenant
from streaming.services.incidents import close_incident, open_incident
from streaming.services.outbound import AddressRefused, check_url

CREDENTIAL = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+")
NEEDS_CREDENTIAL = (UsageSink.Kind.LAGO, UsageSink.Kind.STRIPE)


class SinkRefused(BillingError):
    """There is no such sink, or it can't be as it was asked for."""


def find_sink(name: str) -> UsageSink:
    """Raises ``SinkRefused``."""
    sink = UsageSink.objects.filter(name=name).first()
    if sink is None:
        raise SinkRefused(f"There is no usage sink {name!r}.")
    return sink


@transaction.atomic
def add_sink(
    *,
    name: str,
    url: str,
    actor: str,
    kind: str = UsageSink.Kind.WEBHOOK,
    tenant_name: str | None = None,
    credential: str = "",
    options: Mapping[str, Any] | None = None,
) -> UsageSink:
    """A sink of a tenant's events, or without one of everybody's. Raises ``SinkRefused``."""
    tenant = Tenant.objects.filter(name=tenant_name).first() if tenant_name else None
    if tenant_name and tenant is None:
        raise SinkRefused(f"There is no tenant {tenant_name!r}.")
    sink = UsageSink(
        name=name, kind=kind, url=url, tenant=tenant, credential=credential, options=options or {}
    )
    check(sink)
    sink.save()
    _audit("add", sink, actor)
    return sink


def check(sink: UsageSink) -> None:
    """Whether it could be told anything as it stands. Raises ``SinkRefused``."""
    try:
        sink.full_clean()
        check_url(sink.url)
        checked_options(sink.kind, sink.options)
    except ValidationError as exc:
        raise SinkRefused(" ".join(exc.messages)) from exc
    except (AddressRefused, ValueError) as exc:
        raise SinkRefused(f"{sink.name}: {exc}.") from exc
    if sink.credential and not CREDENTIAL.fullmatch(sink.credential):
        raise SinkRefused("A credential is env:NAME or file:/path, never the secret itself.")
    if sink.kind in NEEDS_CREDENTIAL and not sink.credential:
        raise SinkRefused(f"{sink.kind} needs a credential: env:NAME or file:/path.")
    if sink.kind == UsageSink.Kind.STRIPE and sink.tenant is None:
        raise SinkRefused("A Stripe sink is of one tenant, which is one customer there.")


@transaction.atomic
def change_sink(sink: UsageSink, *, actor: str) -> UsageSink:
    """Save what was changed on ``sink``, and try it again at once. Raises ``SinkRefused``."""
    check(sink)
    sink.failing_since = sink.retry_at = None
    sink.save()
    _audit("change", sink, actor)
    return sink


@transaction.atomic
def switch_sink(sink: UsageSink, *, enabled: bool, actor: str, why: str = "") -> UsageSink:
    """Turn it on or off. What waits for it waits on; what happens meanwhile is not kept for it."""
    sink.enabled = enabled
    sink.failing_since = sink.retry_at = None
    sink.save(update_fields=["enabled", "failing_since", "retry_at"])
    if enabled:
        close_incident(FAILED, sink.name)
    _audit("enable" if enabled else "disable", sink, actor, why=why)
    return sink


@transaction.atomic
def rotate(sink: UsageSink, *, actor: str) -> str:
    """A new signing secret, which is returned. Messages are signed with the former one too, until
    the next rotation, so the receiver changes it when it likes."""
    if sink.kind != UsageSink.Kind.WEBHOOK:
        raise SinkRefused("Only webhooks are signed.")
    sink = lock_sink(sink.pk)
    sink.secret_version += 1
    sink.save(update_fields=["secret_version"])
    _audit("rotate", sink, actor)
    return secret_of(sink)


def secret_of(sink: UsageSink) -> str:
    """The secret of a webhook as its receiver configures it (``whsec_…``)."""
    return signing.shown(_secret(sink.pk, sink.secret_version))


def secrets(sink: UsageSink) -> list[bytes]:
    """What messages are signed with: the present secret, and the one before it; by each SECRET_KEY."""
    versions = range(sink.secret_version, max(sink.secret_version - 2, 0), -1)
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return [_secret(sink.pk, version, key) for key in keys for version in versions]


def fail(sink: UsageSink, events: int, said: str) -> None:
    """Tell operators that a sink was not told everything."""
    open_incident(FAILED, sink.name, data={"kind": sink.kind, "events": events, "said": said})


def _secret(sink_id: int, version: int, key: str | None = None) -> bytes:
    what = f"{sink_id}:{version}"
    return salted_hmac("unbroken.usage_sink", what, secret=key, algorithm="sha256").digest()


def _audit(what: str, sink: UsageSink, actor: str, **data: Any) -> None:
    audit.append(
        f"usage_sink.{what}",
        actor=actor,
        subject=f"usage_sink:{sink.name}",
        tenant_id=sink.tenant_id,
        data={
            "kind": sink.kind,
            "url": sink.url,
            "credential": sink.credential,
            "options": sink.options,
            "enabled": sink.enabled,
            "secret_version": sink.secret_version,
            **{key: value for key, value in data.items() if value},
        },
    )
