"""Gateway processes."""

from __future__ import annotations

from django.db import models


class GatewayInstance(models.Model):
    """One run of one gateway process. Its id is never reused; it holds an advisory lock on it."""

    hostname = models.CharField(max_length=255)
    pid = models.IntegerField()
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True)
    node_streams = models.JSONField(
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        help_text="Its attempts that run now, by node id; written with each heartbeat.",
    )
    figures = models.JSONField(
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        help_text="streams and readers; tokens and failovers since it began. As of its heartbeat.",
    )
    nodes_read_at = models.DateTimeField(
        null=True, help_text="When it last read the node table: what it knows of drains."
    )

    def __str__(self) -> str:
        return f"gateway {self.pk} on {self.hostname} (pid {self.pid})"
