"""Engine nodes."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Now
from django.utils import timezone

from streaming.core.nodes import NodeOptions

OPTIONS_HELP = (
    "continuation, template, prompt_cache, credential, client_cert, client_key, ca, capacity,"
    " exclusive, dns, gpu_metrics, pod, priority: see the README"
)


class Switch(models.TextChoices):
    """What operators may turn off while everything runs. Only defragment has a dry run."""

    ON = "on"
    OFF = "off"
    DRY_RUN = "dry_run", "dry run"


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
        DNS = "dns"  # one address of its parent's name; comes and goes with the name's records

    name = models.CharField(max_length=100, unique=True)
    dialect = models.CharField(max_length=16, choices=Dialect.choices)
    base_url = models.URLField(unique=True)
    admin_state = models.CharField(max_length=10, choices=Admin.choices, default=Admin.ACTIVE)
    source = models.CharField(max_length=12, choices=Source.choices, default=Source.ADMIN)
    weight = models.FloatField(default=1.0)
    options = models.JSONField(default=dict, blank=True, help_text=OPTIONS_HELP)
    parent = models.ForeignKey(
        "self", null=True, blank=True, editable=False, on_delete=models.CASCADE,
        related_name="addresses", help_text="The node by whose name this address was found.",
    )  # fmt: skip
    failover = models.CharField(
        max_length=3, choices=Switch.choices[:2], default=Switch.ON, db_default=Switch.ON,
        help_text="Whether its streams are continued elsewhere, and others' here.",
    )  # fmt: skip
    hedging = models.CharField(
        max_length=3, choices=Switch.choices[:2], default=Switch.ON, db_default=Switch.ON,
        help_text="Whether its silent streams are tried elsewhere as well.",
    )  # fmt: skip
    defragment = models.CharField(
        max_length=7, choices=Switch.choices, default=Switch.ON, db_default=Switch.ON,
        help_text="Whether its KV-cache is cleaned when it fragments (dry run: only said).",
    )  # fmt: skip
    created_at = models.DateTimeField(default=timezone.now)

    health = models.CharField(max_length=10, default="unknown", editable=False)
    health_reason = models.CharField(max_length=300, blank=True, editable=False)
    models_served = models.JSONField(default=list, blank=True, editable=False)
    checked_at = models.DateTimeField(null=True, blank=True, editable=False)
    admin_state_at = models.DateTimeField(
        db_default=Now(), editable=False, help_text="When an operator last spoke."
    )
    capabilities = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField()), editable=False
    )
    figures = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField()), editable=False,
        help_text="What the engine last said of its load.",
    )  # fmt: skip
    circuit = models.CharField(max_length=9, db_default="closed", editable=False)
    probe_asked_at = models.DateTimeField(null=True, blank=True, editable=False)
    circuit_reset_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        permissions = [
            ("operate_node", "Can drain, resume, probe and reclaim nodes"),
        ]
        verbose_name = "engine node"

    def __str__(self) -> str:
        return self.name

    @property
    def is_leaving(self) -> bool:
        """Whether it is an address that its name has no more: it goes when nothing runs there."""
        return self.source == self.Source.DNS and self.parent_id is None

    @property
    def state(self) -> str:
        """In one word: drained, draining, up, suspect, down, or unknown before the first probe.

        A node that is to take no work is that first of all, whatever its health. One that stands
        for the addresses of its name has no health of its own.
        """
        if self.is_leaving:
            return self.Admin.DRAINING
        if self.admin_state != self.Admin.ACTIVE:
            return self.admin_state
        return "addresses" if self.options.get("dns") == "all" else self.health

    @property
    def abilities(self) -> str:
        """What a probe has learnt that it can do, in words."""
        words = {
            "token_ids": "ids", "abort": "abort", "figures": "figures",
            "prefix_caching": "prefix cache", "reset_cache": "reset",
        }  # fmt: skip
        return ", ".join(word for name, word in words.items() if self.capabilities.get(name)) or "-"

    def clean(self) -> None:
        try:
            NodeOptions.parse(self.options)
        except ValueError as exc:
            raise ValidationError({"options": str(exc)}) from exc


class ModelPolicy(models.Model):
    """The same switches for a whole model: off here is off on every node."""

    model = models.CharField(max_length=200, unique=True)
    failover = models.CharField(max_length=3, choices=Switch.choices[:2], default=Switch.ON)
    hedging = models.CharField(max_length=3, choices=Switch.choices[:2], default=Switch.ON)
    defragment = models.CharField(max_length=7, choices=Switch.choices, default=Switch.ON)

    class Meta:
        verbose_name_plural = "model policies"

    def __str__(self) -> str:
        return self.model


class NodeEvent(models.Model):
    """Something that happened to a node; append-only. Outlives the node."""

    # No constraint: what is noted of a node may come in after the node is gone.
    node = models.ForeignKey(
        InferenceNode, null=True, on_delete=models.SET_NULL, related_name="events",
        db_constraint=False,
    )  # fmt: skip
    node_name = models.CharField(max_length=100)
    at = models.DateTimeField(default=timezone.now, db_index=True)
    kind = models.CharField(max_length=40)
    data = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"{self.node_name}: {self.kind}"
