"""The Celery application: every task sweeps up what the gateway processes could not do themselves."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway_project.settings")

app = Celery("unbroken")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

app.conf.beat_schedule = {
    "suspend sessions whose gateway died": {
        "task": "streaming.tasks.suspend_orphaned_sessions",
        "schedule": 5.0,
        # After a pause of the worker one run does the work of all the missed ones.
        "options": {"expires": 5.0},
    },
}
