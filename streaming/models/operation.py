"""What the fleet's own upkeep leaves behind: leases, runs of tasks, incidents."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class Lease(models.Model):
    """Who does something that only one process does at a time. Over when ``until`` has passed."""

    name = models.CharField(max_length=100, primary_key=True)
    holder = models.CharField(max_length=100)
    until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name}: {self.holder}"


class TaskRun(models.Model):
    """One row a periodic task: how it went the last time, and how often it has."""

    name = models.CharField(max_length=100, primary_key=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    succeeded_at = models.DateTimeField(null=True)
    runs = models.BigIntegerField(default=0)
    failures = models.BigIntegerField(default=0)
    error = models.CharField(max_length=500, blank=True)
    result = models.JSONField(default=dict)

    def __str__(self) -> str:
        return self.name


class Incident(models.Model):
    """Something that a person should look at; at most one is open for each kind and subject."""

    kind = models.CharField(max_length=40)
    subject = models.CharField(max_length=200, help_text="A node, a task, an attempt, …")
    node = models.ForeignKey(
        "streaming.InferenceNode",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_constraint=False,
    )
    session_id = models.UUIDField(null=True, blank=True)
    opened_at = models.DateTimeField(default=timezone.now)
    closed_at = models.DateTimeField(null=True, blank=True)
    data = models.JSONField(default=dict, blank=True)
    cause = models.CharField(
        max_length=24, blank=True, db_default="", help_text="Of the interruptions it stands for."
    )
    last_at = models.DateTimeField(
        null=True, blank=True, help_text="When the last of its sessions was hit."
    )

    class Meta:
        permissions = [("credit_incident", "Can credit all sessions of an incident")]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "subject"],
                condition=models.Q(closed_at__isnull=True),
                name="one_open_incident",
            )
        ]
        indexes = [models.Index(fields=["-opened_at"], name="incident_newest")]

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}"
