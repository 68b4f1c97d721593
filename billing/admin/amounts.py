"""Amounts that people type into forms."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from billing.core.money import typed


class AmountField(forms.DecimalField):
    """Takes what commands take, and nothing else that Python would read as a number."""

    def to_python(self, value: Any) -> Decimal | None:  # type: ignore[override]  # the stubs say int
        if value in self.empty_values:
            return None
        try:
            return typed(str(value))
        except ValueError as exc:
            raise ValidationError(self.error_messages["invalid"], code="invalid") from exc
