"""The token log: one row per session and flush."""

from __future__ import annotations

from array import array

from django.db import models


class TokenCheckpoint(models.Model):
    """Tokens ``first_seq``..``last_seq`` of a session, as one flush made them durable.

    ``token_ids`` and ``text_ends`` are little-endian int32 arrays, one entry a token; a token's
    visible text is ``text[text_ends[i-1]:text_ends[i]]`` in characters. An id of -1 is unknown.
    ``terminal`` is set on the row that closes the log: its record (JSON) holds ``last_seq`` itself.
    ``ends_surely``: the last token is known to end a character; else only an engine can tell.
    ``digest`` runs over the ids and text of the whole log up to here (see ``core.digest``).
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

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["session", "first_seq"], name="one_row_per_seq")
        ]

    def __str__(self) -> str:
        return f"tokens {self.first_seq}–{self.last_seq}"

    @property
    def ids(self) -> list[int]:
        """The token ids as integers."""
        return array("i", bytes(self.token_ids)).tolist()
