"""Celery's way to the services of billing; the schedule is in ``gateway_project.celery``."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from billing.services import heads, verification
from streaming.services.task_runs import recorded


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
