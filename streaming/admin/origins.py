"""Origins of web pages in a form: one a line."""

from __future__ import annotations

from typing import Any

from django import forms

from streaming.core.origins import origins_of


class OriginsField(forms.CharField):
    """A list of origins, spelled as browsers spell them."""

    widget = forms.Textarea(attrs={"rows": 4, "cols": 60, "spellcheck": "false"})

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def clean(self, value: Any) -> list[str]:
        try:
            return origins_of(super().clean(value))
        except ValueError as exc:
            raise forms.ValidationError(str(exc)) from exc

    def has_changed(self, initial: Any, data: Any) -> bool:
        lines = [line.strip() for line in (data or "").splitlines()]
        return [line for line in lines if line] != list(initial or [])
