"""Celery's way to the services; the schedule is in ``gateway_project.celery``."""

from __future__ import annotations

from celery import shared_task

from streaming.services import orphans


@shared_task
def suspend_orphaned_sessions() -> int:
    """Suspend the sessions whose gateway process has gone; how many there were."""
    return orphans.suspend_orphaned_sessions()
