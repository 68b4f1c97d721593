"""The token log: one row per session and flush."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from django.db import models

from streaming.core.retention import KEPT
from streaming.models.session import StreamSession


class Checkpoints(models.Manager["TokenCheckpoint"]):
    """Asked for by session, so that one partition is read and no others are locked."""

    def of(self, *sessions: StreamSession) -> models.QuerySet[TokenCheckpoint]:
        """The rows of these sessions."""
        return self.among(sessions)

    def among(self, sessions: Iterable[StreamSession]) -> models.QuerySet[TokenCheckpoint]:
        """The rows of all of ``sessions``."""
        found = list(sessions)
        return self.filter(
            session__in=[session.pk for session in found],
            expires_on__in={session.expires_on for session in found},
        )


class TokenCheckpoint(models.Model):
    """Tokens ``first_seq``..``last_seq`` of a session, as one flush made them durable.

    ``token_ids`` and ``text_ends`` are little-endian int32 arrays, one entry a token; a token's
    visible text is ``text[text_ends[i-1]:text_ends[i]]`` in characters. An id of -1 is unknown.
    ``terminal`` is set on the row that closes the log: its record (JSON) holds ``last_seq`` itself.
    ``ends_surely``: the last token is known to end a character; else only an engine can tell.
    ``digest`` runs over the ids and text of the whole log up to here (see ``core.digest``).

    The table is partitioned by ``expires_on`` (see ``services.partitions``), which all rows of a
    session have from its fence. ``id`` numbers the rows and has no index.
    """

    session = models.ForeignKey(
        "streaming.StreamSession",
        on_delete=models.CASCADE,
        related_name="checkpoints",
        # The fence row proves that the session exists; a foreign key check per row is hot.
        db_constraint=False,
        db_index=False,
    )
    epoch = models.BigIntegerField()
    attempt = models.SmallIntegerField()
    first_seq = models.BigIntegerField()
    last_seq = models.BigIntegerField()
    token_ids = models.BinaryField()
    text = models.BinaryField()
    text_ends = models.BinaryField()
    digest = models.BinaryField()
    terminal = models.BinaryField(null=True)
    ends_surely = models.BooleanField(default=True)
    created_at = models.DateTimeField()
    expires_on = models.DateField(default=KEPT, db_default=KEPT)

    objects = Checkpoints()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["session", "first_seq", "expires_on"], name="one_row_per_seq"
            )
        ]

    def __str__(self) -> str:
        return f"tokens {self.first_seq}–{self.last_seq}"

    @property
    def ids(self) -> list[int]:
        """The token ids as integers."""
        return array("i", bytes(self.token_ids)).tolist()
