"""How the periodic tasks went."""

from __future__ import annotations

from django.contrib import admin

from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.tenancy import OfFleet
from streaming.models import TaskRun


@admin.register(TaskRun)
class TaskRunAdmin(OfFleet, ReadOnlyAdmin):
    ordering = ["name"]
    list_display = ["name", "started_at", "succeeded_at", "runs", "failures", "error"]
