"""One try at producing (the rest of) an answer on one node."""

from __future__ import annotations

from django.db import models


class Attempt(models.Model):
    """Why it began, where it ran, what it produced and why it ended. Times in milliseconds."""

    session = models.ForeignKey(
        "streaming.StreamSession",
        on_delete=models.CASCADE,
        related_name="attempts",
        db_constraint=False,
        db_index=False,
    )
    number = models.SmallIntegerField()
    epoch = models.BigIntegerField()
    node = models.ForeignKey(
        "streaming.InferenceNode", on_delete=models.SET_NULL, null=True, db_constraint=False
    )
    node_name = models.CharField(max_length=100)
    engine_request_id = models.CharField(max_length=100)
    seam_grade = models.CharField(
        max_length=12, blank=True, help_text="How it was joined on; empty for the first attempt."
    )
    seam_note = models.CharField(max_length=300, blank=True)
    started_at = models.DateTimeField()
    first_token_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    first_seq = models.BigIntegerField(null=True)
    last_seq = models.BigIntegerField(null=True)
    end_reason = models.CharField(max_length=24, blank=True)
    end_detail = models.CharField(max_length=500, blank=True, help_text="What the engine said.")
    ttft_ms = models.FloatField(null=True)
    detection_ms = models.FloatField(null=True, help_text="Last data event to failure noticed.")
    recovery_ms = models.FloatField(null=True, help_text="Failure noticed to next token.")
    cached_prompt_tokens = models.IntegerField(null=True)
    discarded_tokens = models.IntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["session", "number"], name="attempt_numbered_once")
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} on {self.node_name}"
