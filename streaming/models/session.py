"""A session (one logical answer) and its fence."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Greatest, Least
from django.utils import timezone

from streaming.core.delivery import Marks
from streaming.core.ids import uuid7
from streaming.core.outcome import Outcome, Review
from streaming.core.retention import KEPT
from streaming.core.state import SessionState

_HIT = ~models.Q(outcome="")


class StreamSession(models.Model):
    """One answer: who asked what, and what became of it.

    ``request`` is the client's JSON body as bytes (text columns refuse NUL); ``prompt_token_ids``
    are little-endian int32, as in every table of ours.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    reference = models.CharField(max_length=7, db_index=True, help_text="For reading out.")
    tenant = models.ForeignKey("streaming.Tenant", on_delete=models.PROTECT, related_name="+")
    api_key = models.ForeignKey(
        "streaming.ApiKey", on_delete=models.SET_NULL, null=True, related_name="+"
    )
    end_user = models.CharField(max_length=128, blank=True)
    request_id = models.CharField(max_length=64, blank=True, db_index=True)
    protocol = models.CharField(max_length=12)
    model = models.CharField(max_length=200)
    model_requested = models.CharField(max_length=200)
    request = models.BinaryField()
    seed = models.BigIntegerField(null=True)
    prompt_token_ids = models.BinaryField(null=True)
    prompt_tokens = models.IntegerField(null=True)

    state = models.CharField(
        max_length=12, choices=[(state.value, state.value) for state in SessionState]
    )
    finish_reason = models.CharField(max_length=16, blank=True)
    error_code = models.CharField(max_length=40, blank=True)
    cause = models.CharField(max_length=24, blank=True)
    evidence = models.JSONField(default=dict, blank=True)
    on_disconnect = models.CharField(max_length=8, default="suspend")
    suspended_at = models.DateTimeField(null=True)
    resume_until = models.DateTimeField(null=True)
    expires_on = models.DateField(
        default=KEPT,
        db_default=KEPT,
        help_text="The day on which its content was to leave, when it began.",
    )
    purged_at = models.DateTimeField(null=True)
    log_digest = models.BinaryField(
        null=True, help_text="The digest over the whole log, kept when its content is purged."
    )
    owner = models.ForeignKey(
        "streaming.GatewayInstance", on_delete=models.PROTECT, null=True, related_name="sessions"
    )

    cached_prompt_tokens = models.IntegerField(null=True)
    completion_tokens = models.IntegerField(default=0)
    discarded_tokens = models.IntegerField(default=0)
    failovers = models.SmallIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)
    first_token_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    # What ``services.explaining`` has found in its course; the lists of the support desk read these.
    outcome = models.CharField(
        max_length=10, blank=True, db_default="", choices=[(o.value, o.value) for o in Outcome],
        help_text="Empty: nothing interrupted it.",
    )  # fmt: skip
    interrupted_at = models.DateTimeField(
        null=True, help_text="Of its main interruption, as all these."
    )
    interrupted_seq = models.BigIntegerField(null=True, help_text="The last token before it.")
    interrupted_node = models.CharField(max_length=100, blank=True, db_default="")
    interrupted_cause = models.CharField(max_length=24, blank=True, db_default="")
    seam_grade = models.CharField(max_length=12, blank=True, db_default="", help_text="The worst.")
    gap_ms = models.FloatField(null=True, help_text="Without a token, beyond its usual pace.")
    noticed = models.BooleanField(db_default=False, help_text="The reader must have seen it.")
    incident = models.ForeignKey(
        "streaming.Incident", on_delete=models.SET_NULL, null=True, blank=True,
        related_name="sessions", db_constraint=False, db_index=False,
    )  # fmt: skip
    review = models.CharField(
        max_length=8, blank=True, db_default="", choices=[(r.value, r.value) for r in Review]
    )
    reduced_at = models.DateTimeField(null=True, help_text="When its metadata was forgotten.")

    # What content rules have found in it, where somebody has to look at that.
    content_action = models.CharField(
        max_length=4, blank=True, db_default="", choices=[("flag", "flag"), ("stop", "stop")]
    )
    content_rule = models.CharField(
        max_length=64, blank=True, db_default="", help_text="The last one that did."
    )

    # How it was delivered.
    level = models.CharField(max_length=8, blank=True, db_default="", help_text="Of quality.")
    variant = models.CharField(
        max_length=32, blank=True, db_default="", help_text="Its side in a comparison."
    )
    embed_token_id = models.UUIDField(null=True, help_text="With which its browser began it.")
    health = models.SmallIntegerField(
        null=True, help_text="The lowest score of its readers' connections, 0 to 100."
    )

    class Meta:
        permissions = [
            ("reveal_content", "Can see what was asked and answered"),
            ("all_tenants", "Sees all tenants, not only their own"),
            ("stop_session", "Can stop sessions"),
            ("continue_session", "Can have sessions continued"),
            ("review_session", "Can assign and review sessions"),
            ("export_sessions", "Can export sessions"),
            ("purge_content", "Can purge content, and erase end users"),
            ("watch_live_board", "Can watch the live board"),
        ]
        indexes = [
            # The support desk's lists: all of them newest first, on few of the rows.
            models.Index(fields=["-interrupted_at"], name="session_interrupted", condition=_HIT),
            *(
                models.Index(
                    fields=[column, "-interrupted_at"],
                    name=f"session_hit_by_{name}",
                    condition=_HIT,
                )
                for column, name in (
                    ("tenant", "tenant"),
                    ("interrupted_node", "node"),
                    ("interrupted_cause", "cause"),
                    ("outcome", "outcome"),
                    ("model", "model"),
                )
            ),
            models.Index(
                fields=["review", "-interrupted_at"],
                name="session_to_review",
                condition=~models.Q(review=""),
            ),
            models.Index(
                fields=["-interrupted_at"],
                name="session_noticed",
                condition=models.Q(noticed=True),
            ),
            models.Index(
                fields=["end_user", "-created_at"],
                opclasses=["varchar_pattern_ops", "timestamptz_ops"],
                name="session_by_end_user",
                condition=~models.Q(end_user=""),
            ),
            models.Index(
                fields=["incident"],
                name="session_by_incident",
                condition=models.Q(incident__isnull=False),
            ),
            models.Index(
                fields=["-created_at"],
                name="session_flagged",
                condition=~models.Q(content_action=""),
            ),
            models.Index(fields=["-created_at"], name="session_newest"),
            models.Index(
                fields=["owner"],
                name="session_open_by_owner",
                condition=models.Q(ended_at__isnull=True),
            ),
            models.Index(
                fields=["resume_until"],
                name="session_suspended",
                condition=models.Q(state="suspended"),
            ),
            models.Index(
                fields=["tenant", "created_at"],
                name="session_with_content",
                condition=models.Q(purged_at__isnull=True),
            ),
            models.Index(
                fields=["expires_on"],
                name="session_to_leave",
                condition=models.Q(purged_at__isnull=True),
            ),
            models.Index(
                fields=["tenant", "created_at"],
                name="session_to_reduce",
                condition=models.Q(purged_at__isnull=False, reduced_at__isnull=True),
            ),
            models.Index(fields=["tenant", "ended_at"], name="session_ended_by_tenant"),
        ]

    def __str__(self) -> str:
        return f"{self.reference} ({self.state})"


class SessionFence(models.Model):
    """Who may append to a session's log, and how far it is durable.

    A table of its own so that the journal's flush, takeover and stop touch one narrow row in
    short transactions. Only ``epoch``'s holder appends, and only directly after ``durable_seq``.
    """

    session = models.OneToOneField(
        StreamSession,
        primary_key=True,
        on_delete=models.CASCADE,
        db_constraint=False,
        related_name="fence",
    )
    epoch = models.BigIntegerField()
    durable_seq = models.BigIntegerField()
    delivered_seq = models.GeneratedField(
        expression=Least("sent_seq", Greatest("taken_seq", "cursor_seq", "acked_seq")),
        output_field=models.BigIntegerField(),
        db_persist=True,
    )
    sent_seq = models.BigIntegerField(
        default=0, db_default=0, help_text="The last token in an event that was written whole."
    )
    taken_seq = models.BigIntegerField(
        default=0, db_default=0, help_text="Taken by a reader's system, as far as its socket told."
    )
    cursor_seq = models.BigIntegerField(
        default=0, db_default=0, help_text="The greatest cursor that a reader has come back with."
    )
    acked_seq = models.BigIntegerField(
        default=0, db_default=0, help_text="What a reader has said that it has."
    )
    expires_on = models.DateField(
        default=KEPT, db_default=KEPT, help_text="The session’s, where each flush finds it."
    )
    stop_requested = models.BooleanField(default=False)
    continue_requested = models.BooleanField(
        default=False, db_default=False, help_text="Somebody wants it continued without a reader."
    )
    readers_until = models.DateTimeField(
        null=True, help_text="Another process has readers of the session until then, at least."
    )

    class Meta:
        db_table = "session_fence"

    @property
    def evidence(self) -> str:
        """The strongest kind of evidence for all of what counts as delivered."""
        marks = Marks(self.sent_seq, self.taken_seq, self.cursor_seq, self.acked_seq)
        return marks.evidence.name.lower()

    def __str__(self) -> str:
        return f"epoch {self.epoch}, durable to {self.durable_seq}"


class IdempotencyKey(models.Model):
    """The first request with an ``Idempotency-Key`` claims it; the others attach to its session."""

    tenant = models.ForeignKey("streaming.Tenant", on_delete=models.CASCADE, related_name="+")
    end_user = models.CharField(max_length=128, blank=True)
    key = models.CharField(max_length=255)
    body_digest = models.BinaryField(help_text="SHA-256 of the request body.")
    session_id = models.UUIDField(db_index=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "end_user", "key"], name="idempotent_once")
        ]
        indexes = [models.Index(fields=["key"], name="idempotency_by_key")]

    def __str__(self) -> str:
        return self.key
