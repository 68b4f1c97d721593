"""What people are asked for who look into sessions."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.models import User

from streaming.services.reviews import NOTE_LENGTH, PERMISSION, TICKET_LENGTH


def reviewers() -> Any:
    """The members of staff who may look into sessions."""
    return User.objects.with_perm(
        PERMISSION, include_superusers=True, backend="django.contrib.auth.backends.ModelBackend"
    ).filter(is_staff=True, is_active=True).order_by("username")  # fmt: skip


class AssignForm(forms.Form):
    assignee = forms.ModelChoiceField(
        queryset=User.objects.none(), required=False, empty_label="Nobody"
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["assignee"].queryset = reviewers()  # type: ignore[attr-defined]


class ReviewForm(forms.Form):
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
