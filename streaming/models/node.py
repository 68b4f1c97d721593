"""Engine nodes."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone

from streaming.core.nodes import NodeOptions

OPTIONS_HELP = (
    "continuation: ids, text or regenerate; template: chatml or llama3; prompt_cache: on or off"
)


class InferenceNode(models.Model):
    """One engine server. What is configured lives here; what is observed is reported here too."""

    class Dialect(models.TextChoices):
        VLLM = "vllm", "vLLM"
        LLAMACPP = "llamacpp", "llama.cpp"

    class Admin(models.TextChoices):
        # What an operator wants of the node; its health is another matter.
        ACTIVE = "active"
        DRAINING = "draining"
        DRAINED = "drained"

    class Source(models.TextChoices):
        # ENVIRONMENT rows follow ENGINE_NODES; the others belong to whoever added them.
        ENVIRONMENT = "environment"
        COMMAND = "command"
        ADMIN = "admin"

    name = models.CharField(max_length=100, unique=True)
    dialect = models.CharField(max_length=16, choices=Dialect.choices)
    base_url = models.URLField(unique=True)
    admin_state = models.CharField(max_length=10, choices=Admin.choices, default=Admin.ACTIVE)
    source = models.CharField(max_length=12, choices=Source.choices, default=Source.ADMIN)
    weight = models.FloatField(default=1.0)
    options = models.JSONField(default=dict, blank=True, help_text=OPTIONS_HELP)
    created_at = models.DateTimeField(default=timezone.now)

    health = models.CharField(max_length=10, default="unknown", editable=False)
    health_reason = models.CharField(max_length=300, blank=True, editable=False)
    models_served = models.JSONField(default=list, blank=True, editable=False)
    checked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name = "engine node"

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        try:
            NodeOptions.parse(self.options)
        except ValueError as exc:
            raise ValidationError({"options": str(exc)}) from exc

    def as_row(self) -> dict[str, Any]:
        """The configured part, as the fleet registry reads it."""
        return {
            "name": self.name,
            "dialect": self.dialect,
            "base_url": self.base_url,
            "admin_state": self.admin_state,
            "weight": self.weight,
            "options": self.options,
        }
