"""The audit log: one hash chain over everything that people and money did."""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models


class AuditEntry(models.Model):
    """One link. ``data`` is the canonical JSON text that was hashed; nothing personal is in it.

    ``hash`` = SHA-256 over the length-prefixed fields and ``previous`` (``billing.core.chain``).
    """

    seq = models.BigIntegerField(primary_key=True)
    at = models.DateTimeField()
    action = models.CharField(max_length=40, help_text="Like ledger.charge or node.drain.")
    actor = models.CharField(max_length=150)
    subject = models.CharField(max_length=200, db_index=True)
    tenant_id = models.BigIntegerField(null=True)
    session_id = models.UUIDField(null=True, db_index=True)
    data = models.TextField()
    previous = models.BinaryField(unique=True)
    hash = models.BinaryField(unique=True)

    class Meta:
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["action", "seq"], name="audit_by_action"),
            models.Index(fields=["at"], name="audit_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.seq}: {self.action} {self.subject}"

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("Audit entries cannot be deleted.")


class AuditHead(models.Model):
    """The end of the chain: one row, locked by whoever appends, so that it never forks."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    seq = models.BigIntegerField()
    hash = models.BinaryField()

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_audit_head")]

    def __str__(self) -> str:
        return f"{self.seq}:{bytes(self.hash).hex()}"
