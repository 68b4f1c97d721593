"""The Celery application: every task sweeps up what the gateway processes could not do themselves.

Nothing urgent waits for it. The schedule is static, and here.
"""

import os
from typing import Any

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway_project.settings")

app = Celery("unbroken")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

EVERY_SECONDS = {
    "settle_sessions": 1.0,
    "explain_sessions": 1.0,
    "reclaim_kv_cache": 1.0,
    "settle_abandoned_sessions": 5.0,
    "deliver_usage_events": 5.0,
    "deliver_webhooks": 3.0,
    "book_bulk_credits": 15.0,
    "release_reservations": 60.0,
    "defragment_nodes": 300.0,
    "purge_expired_content": 3600.0,
    "reduce_expired_metadata": 3600.0,
    "forget_usage_events": 3600.0,
    "forget_webhooks": 3600.0,
    "publish_audit_head": 3600.0,
    "verify_audit_log": 86400.0,
}


def _entry(task: str, seconds: float) -> dict[str, Any]:
    # After a pause of the worker one run does the work of all the missed ones.
    return {"task": task, "schedule": seconds, "options": {"expires": seconds}}


app.conf.beat_schedule = {task: _entry(task, seconds) for task, seconds in EVERY_SECONDS.items()}
