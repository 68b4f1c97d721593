"""The admin, one module per table. What gateways write is shown, never edited here."""

from __future__ import annotations

from django.contrib import admin

from streaming.admin import (  # noqa: F401  (importing a module registers its table)
    alias,
    api_key,
    attempt,
    checkpoint,
    content_rule,
    embed_token,
    event,
    flagged,
    incident,
    instance,
    interrupted,
    node,
    node_event,
    outbox,
    policy,
    session,
    task_run,
    tenant,
    webhook,
    webhook_delivery,
)

admin.site.site_header = "Unbroken"
admin.site.site_title = "Unbroken"
admin.site.index_title = "Administration"
