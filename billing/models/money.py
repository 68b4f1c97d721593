"""Columns for money: exact decimals and ISO 4217 currencies."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from billing.core.currencies import CURRENCIES
from billing.core.money import AMOUNT_DIGITS, AMOUNT_PLACES


def check_currency(code: str) -> None:
    """Raise ``ValidationError`` for what is no current code of ISO 4217."""
    if code not in CURRENCIES:
        raise ValidationError("Use a code like EUR.", code="no_currency")


class MoneyField(models.DecimalField):
    """An amount as exact as it was computed; see ``billing.core.money`` for why it always fits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["max_digits"] = AMOUNT_DIGITS
        kwargs["decimal_places"] = AMOUNT_PLACES
        super().__init__(*args, **kwargs)


class CurrencyField(models.CharField):
    """An ISO 4217 code such as EUR."""

    default_validators = [check_currency]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["max_length"] = 3
        super().__init__(*args, **kwargs)
