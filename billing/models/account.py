"""A tenant as finance sees it."""

from __future__ import annotations

import zoneinfo

from django.core.exceptions import ValidationError
from django.db import models

from billing.models.money import CurrencyField, MoneyField


def known_time_zone(name: str) -> None:
    """Raises ``ValidationError`` for a name that the IANA database does not have."""
    if name not in zoneinfo.available_timezones():
        raise ValidationError(f"{name!r} is no time zone; use a name like Europe/Berlin.")


class BillingAccount(models.Model):
    """Where a tenant's months begin and what it may spend in one. Made when it is first needed."""

    tenant = models.OneToOneField(
        "streaming.Tenant", on_delete=models.PROTECT, primary_key=True, related_name="billing"
    )
    legal_name = models.CharField(max_length=200, blank=True)
    time_zone = models.CharField(max_length=64, default="UTC", validators=[known_time_zone])
    token_limit = models.BigIntegerField(
        null=True, blank=True, help_text="Delivered tokens (input and output) per period."
    )
    spend_limit = MoneyField(null=True, blank=True, help_text="Per period.")
    spend_currency = CurrencyField(blank=True)
    limits_are_hard = models.BooleanField(
        default=True, help_text="Refuse new sessions beyond a limit; else only tell."
    )

    def __str__(self) -> str:
        return self.legal_name or str(self.tenant)
