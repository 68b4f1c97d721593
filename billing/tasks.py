"""Celery's way to the services of billing; the schedule is in ``gateway_project.celery``."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from billing.services import bulk_credits, deliveries, heads, quota, settlement, verification
from streaming.services.task_runs import recorded

SOON = {"countdown": 1.0, "expires": 30.0}
"""For what has more to do: meanwhile the worker does something else."""


@shared_task(name="settle_sessions")
@recorded("settle_sessions")
def settle_sessions() -> dict[str, Any]:
    """Settle the sessions that wait for it, and bring into the audit log what waits to be in it."""
    return settlement.settle_due()


@shared_task(name="verify_audit_log")
@recorded("verify_audit_log")
def verify_audit_log() -> dict[str, Any]:
    """Look whether the audit log, and what it witnesses, is what it was; tell its head to the world."""
    return verification.watch()


@shared_task(name="publish_audit_head")
@recorded("publish_audit_head")
def publish_audit_head() -> dict[str, Any]:
    """Tell the audit log's head to the world: what is cut off later shows."""
    heads.publish()
    return {}


@shared_task(name="deliver_usage_events")
@recorded("deliver_usage_events")
def deliver_usage_events() -> dict[str, Any]:
    """Tell collectors and webhooks what was used."""
    result = deliveries.deliver_usage_events()
    if result["more"]:
        deliver_usage_events.apply_async(**SOON)
    return result


@shared_task(name="book_bulk_credits")
@recorded("book_bulk_credits")
def book_bulk_credits() -> dict[str, Any]:
    """Go on with credits of incidents that were broken off."""
    result = bulk_credits.carry_on()
    if result["more"]:
        book_bulk_credits.apply_async(**SOON)
    return result


@shared_task(name="release_reservations")
@recorded("release_reservations")
def release_reservations() -> dict[str, Any]:
    """Give back what sessions hold of a quota that never began."""
    return quota.release_stale()


@shared_task(name="forget_usage_events")
@recorded("forget_usage_events")
def forget_usage_events() -> dict[str, Any]:
    """Delete usage events that were delivered long ago."""
    result = deliveries.forget_delivered()
    if result["more"]:
        forget_usage_events.apply_async(**SOON)
    return result
