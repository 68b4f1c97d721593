"""Who changes something by hand enters the audit log."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest

from streaming.services import audit

ACTOR_LENGTH = 150  # of the columns that hold an actor


def actor_of(request: HttpRequest) -> str:
    """As histories and the audit log name who is logged in: ``user:alice``."""
    return f"user:{request.user.get_username()}"[:ACTOR_LENGTH]


class AuditedAdmin(admin.ModelAdmin):
    """Saving a form is told under ``audited_as`` (``tenant.change``), in the form's transaction.

    Of the columns in ``told`` the log has what they were and are; of others, which may be personal,
    that they were changed.
    """

    audited_as: str
    told: tuple[str, ...] = ()

    def audit_subject(self, obj: Any) -> tuple[str, int | None]:
        """What the log calls it, and its tenant."""
        raise NotImplementedError

    def announce(self, request: HttpRequest, obj: Any, did: str, **data: Any) -> None:
        subject, tenant_id = self.audit_subject(obj)
        audit.announce(
            f"{self.audited_as}.{did}",
            actor=actor_of(request),
            subject=subject,
            tenant_id=tenant_id,
            **data,
        )

    def save_model(
        self, request: HttpRequest, obj: Any, form: forms.ModelForm, change: bool
    ) -> None:
        super().save_model(request, obj, form, change)
        self.announce_saved(request, obj, form, change)

    def announce_saved(
        self, request: HttpRequest, obj: Any, form: forms.ModelForm, change: bool
    ) -> None:
        """Tell of a form that was saved, unless nothing was changed by it."""
        if not change:
            self.announce(
                request, obj, "create", **{name: getattr(obj, name) for name in self.told}
            )
        elif form.changed_data:
            before = {
                name: form.initial.get(name) for name in form.changed_data if name in self.told
            }
            after = {name: getattr(obj, name) for name in before}
            columns = ", ".join(sorted(form.changed_data))
            self.announce(request, obj, "change", columns=columns, **audit.changes(before, after))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        self.announce(request, obj, "remove")
        super().delete_model(request, obj)

    @transaction.atomic
    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for obj in queryset:
            self.delete_model(request, obj)
