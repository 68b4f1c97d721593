"""What people are asked for who look into sessions."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.db.models import QuerySet

from streaming.admin.tenancy import tenants_of
from streaming.models import TenantMember
from streaming.services.reviews import NOTE_LENGTH, PERMISSION, TICKET_LENGTH

BACKEND = "django.contrib.auth.backends.ModelBackend"


def reviewers(seen_by: Any) -> QuerySet[User]:
    """The members of staff who may look into sessions; of who sees few tenants, their own people."""
    found: QuerySet[User] = User.objects.with_perm(PERMISSION, backend=BACKEND)
    found = found.filter(is_staff=True, is_active=True).order_by("username")
    tenants = tenants_of(seen_by)
    if tenants is None:
        return found
    # Not by a join: who is a member of two tenants is there once.
    members = TenantMember.objects.filter(tenant__in=tenants).values("user_id")
    return found.filter(pk__in=members)


class DeskForm(forms.Form):
    """``user``: who is asked."""

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user


class AssignForm(DeskForm):
    assignee = forms.ModelChoiceField(
        queryset=User.objects.none(), required=False, empty_label="Nobody"
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["assignee"].queryset = reviewers(self.user)  # type: ignore[attr-defined]


class ReviewForm(DeskForm):
    note = forms.CharField(
        max_length=NOTE_LENGTH,
        required=False,
        widget=forms.Textarea(attrs={"rows": 5, "class": "vLargeTextField"}),
        help_text="For colleagues. Nothing of what was asked or answered.",
    )
    ticket = forms.CharField(
        max_length=TICKET_LENGTH,
        required=False,
        label="Ticket number",
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )

    def clean(self) -> dict[str, Any]:
        said = super().clean() or {}
        if not self.errors and not (said.get("note") or said.get("ticket")):
            raise forms.ValidationError("Say what was found, or in which ticket it is.")
        return said
