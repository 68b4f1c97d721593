"""A desk with something of everything, in a stack's own database; run by ``manage.py shell``.

What strangers can write is hostile here: markup, bidi controls, words without an end.
"""

from __future__ import annotations

from datetime import timedelta

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils import timezone

from billing.services.settlement import settle_due
from streaming.models import Incident, InferenceNode, SessionReview, TenantMember
from tests.admin.rows import add_session
from tests.billing.rows import add_plan, add_tenant, ended_session

USER, PASSWORD = "root", "for the board only"
BIDI = "‮evil‬ ⁦x"
LONG = "unbreakable" * 12
HOSTILE = f"<script>alert('{BIDI}')</script>" + LONG


def fill() -> None:
    """Rows for every page of both apps."""
    user = User.objects.create_superuser(USER, password=PASSWORD)
    now = timezone.now()
    for number, outcome in enumerate(("recovered", "suspended", "lost", "recovered", "left")):
        session = add_session(
            reference=f"K7Q-4M{number}", end_user=HOSTILE[:128], outcome=outcome, failovers=1,
            interrupted_at=now - timedelta(minutes=7 * number), interrupted_seq=412, gap_ms=38.0,
            interrupted_node="gpu-a", interrupted_cause="out_of_memory", seam_grade="exact",
            noticed=outcome == "lost", review="needed" if outcome == "lost" else "",
            state="suspended" if outcome == "suspended" else "completed",
            ended_at=None if outcome == "suspended" else now,
            resume_until=now + timedelta(hours=1) if outcome == "suspended" else None,
        )  # fmt: skip
    TenantMember.objects.create(user=user, tenant=session.tenant)
    SessionReview.objects.create(session=session, assignee=user, note=HOSTILE, ticket="T-1")
    Incident.objects.create(
        kind="node_failed", subject=BIDI + LONG[:100], cause="out_of_memory", data={"said": HOSTILE}
    )
    InferenceNode.objects.filter(name="gpu-a").update(
        health="down", health_reason=HOSTILE[:200], circuit="open",
        figures={"running": 3, "waiting": 1, "kv_usage": 0.5, "kv_tokens": 1000, "block_tokens": 16},
    )  # fmt: skip
    _add_books()


def _add_books() -> None:
    first = timezone.now().replace(day=1, hour=0, minute=0)
    tenant = add_tenant("books", display_name=BIDI, created_at=first - timedelta(days=20))
    add_plan(input="100", cached="10", output="5000", cost="1200")
    ended_session(7, tenant=tenant, at=first - timedelta(days=2))
    settle_due()


LISTS = [
    "streaming_streamsession",
    "streaming_interruptedsession",
    "streaming_flaggedsession",
    "streaming_inferencenode",
    "billing_ledgerentry",
]
ROWS = [
    "streaming_streamsession", "streaming_inferencenode", "streaming_incident", "streaming_tenant",
    "billing_usagerecord", "billing_billingperiod", "auth_user",
]  # fmt: skip
FORMS = [
    "streaming_contentrule",
    "streaming_inferencenode",
    "streaming_apikey",
    "billing_pricelist",
]


def pages() -> dict[str, list[str]]:
    """The paths of the admin's pages: one of every kind, and all ``lists``."""
    kinds = [
        *(reverse(name) for name in ("admin:index", "desk:live", "time-zone")),
        *(reverse(f"admin:{table}_changelist") for table in LISTS),
        *(reverse(f"admin:{table}_add") for table in FORMS),
    ]
    for table in ROWS:
        row = apps.get_model(*table.split("_"))._default_manager.order_by("pk").first()
        assert row is not None, table
        kinds.append(reverse(f"admin:{table}_change", args=[quote(row.pk)]))
    lists = [
        reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        for model in admin.site._registry
    ]
    return {"kinds": kinds, "lists": [path for path in lists if path not in kinds]}
