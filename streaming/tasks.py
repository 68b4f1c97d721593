"""Celery's way to the services; the schedule is in ``gateway_project.celery``."""

from __future__ import annotations

from celery import shared_task

from streaming.services import orphans


@shared_task
def finish_orphaned_sessions() -> int:
    """End the sessions whose gateway process has gone; how many there were."""
    return orphans.finish_orphaned_sessions()
