"""One try at producing (the rest of) an answer on one node."""

from __future__ import annotations

from django.db import models


class Attempt(models.Model):
    """Why it began, where it ran, what it produced and why it ended. Times in milliseconds."""

    class Kind(models.TextChoices):
        # Why there is one more attempt.
        FIRST = "first"
        FAILOVER = "failover"  # the one before it failed
        HEDGE = "hedge"  # the one before it had gone silent; the first to speak went on
        MIGRATION = "migration"  # its node was drained
        RESUMPTION = "resumption"  # a reader came back, or a gateway process had died

    class Reclaim(models.TextChoices):
        # What became of the engine's side of it: no request without a session may stay there.
        NOT_NEEDED = ""  # the engine itself said that it had finished, or it runs still
        PENDING = "pending"
        VERIFIED = "verified"  # seen on the engine's own figures
        UNVERIFIABLE = "unverifiable"  # frozen, unreachable, or without figures; checked again
        OVERDUE = "overdue"  # not gone after 5 s: an incident

    session = models.ForeignKey(
        "streaming.StreamSession",
        on_delete=models.CASCADE,
        related_name="attempts",
        db_constraint=False,
        db_index=False,
    )
    number = models.SmallIntegerField()
    kind = models.CharField(
        max_length=10, choices=Kind.choices, default=Kind.FIRST, db_default=Kind.FIRST
    )
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
    log_digest = models.BinaryField(
        null=True,
        help_text="The digest over the log up to its last token, kept when the content is purged.",
    )
    end_reason = models.CharField(max_length=24, blank=True)
    end_detail = models.CharField(max_length=500, blank=True, help_text="What the engine said.")
    cause = models.CharField(
        max_length=24, blank=True, db_default="", help_text="What lay behind a failure."
    )
    evidence = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    reclaim = models.CharField(
        max_length=12, choices=Reclaim.choices, blank=True, db_default=Reclaim.NOT_NEEDED
    )
    reclaimed_at = models.DateTimeField(null=True)
    ttft_ms = models.FloatField(null=True)
    detection_ms = models.FloatField(null=True, help_text="Last data event to failure noticed.")
    recovery_ms = models.FloatField(null=True, help_text="Failure noticed to next token.")
    cached_prompt_tokens = models.IntegerField(null=True)
    generated_tokens = models.IntegerField(
        default=0,
        db_default=0,
        help_text="Read from the engine: those in the log, those discarded, those repeated.",
    )
    discarded_tokens = models.IntegerField(
        default=0, help_text="In no log: without text yet, held back, or overtaken."
    )
    repeated_tokens = models.IntegerField(
        default=0, db_default=0, help_text="Of a regenerated answer, those that were there already."
    )
    engine_prompt_tokens = models.IntegerField(null=True, help_text="As the engine counts.")
    engine_completion_tokens = models.IntegerField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["session", "number"], name="attempt_numbered_once")
        ]
        indexes = [
            models.Index(
                fields=["ended_at"],
                name="attempt_to_reclaim",
                condition=models.Q(reclaim__in=["pending", "unverifiable", "overdue"]),
            )
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} on {self.node_name}"
