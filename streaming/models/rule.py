"""Content rules: what may not stand in an answer."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class ContentRule(models.Model):
    """A word or a regular expression, and what becomes of an answer in which it is found."""

    class Kind(models.TextChoices):
        WORD = "word"
        REGEX = "regex"

    class Action(models.TextChoices):
        MASK = "mask", "mask: replaced, the answer goes on"
        STOP = "stop", "stop: the answer ends before it"
        FLAG = "flag", "flag: shown, and put before a reviewer"

    tenant = models.ForeignKey(
        "streaming.Tenant", on_delete=models.CASCADE, null=True, blank=True,
        related_name="content_rules", help_text="Empty: for all tenants.",
    )  # fmt: skip
    name = models.CharField(max_length=64, help_text="What audit and reviewers read.")
    kind = models.CharField(max_length=5, choices=Kind.choices, default=Kind.WORD)
    pattern = models.CharField(max_length=500)
    case_sensitive = models.BooleanField(default=False)
    action = models.CharField(max_length=4, choices=Action.choices, default=Action.MASK)
    replacement = models.CharField(max_length=64, blank=True, default="***")
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"], name="rule_once_per_tenant", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return self.name
