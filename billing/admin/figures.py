"""Amounts, counts and links as people read them in lists and on pages."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import Model
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from billing.core.currencies import minor_digits
from billing.core.money import plain

NARROW_SPACE = "\u202f"
SHORT_ID = 13
"""To the millisecond in which the session began."""


def money(amount: Decimal | None, currency: str) -> str:
    """Exact, with at least the currency's own decimals: ``12.30 EUR``, ``0.00004518 EUR``."""
    if amount is None:
        return "-"
    whole, _, decimals = plain(amount).partition(".")
    decimals = decimals.ljust(minor_digits(currency), "0")
    shown = f"{whole}.{decimals}" if decimals else whole
    return f"{shown} {currency}".rstrip()


def count(number: int) -> str:
    """With narrow spaces between thousands, which no reader takes for a decimal sign."""
    return f"{number:,}".replace(",", NARROW_SPACE)


def amount_cell(amount: Decimal | None, currency: str) -> SafeString:
    """An amount for a column of amounts: to the right, digits of one width."""
    return format_html('<span class="billing-amount">{}</span>', money(amount, currency))


def page_of(row: Model) -> str:
    """The address of a row's page in the admin."""
    meta = row._meta
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[row.pk])


def link_to(row: Model | None, words: Any = None) -> SafeString | str:
    """A link to a row's page; ``-`` for no row."""
    if row is None:
        return "-"
    return format_html('<a href="{}">{}</a>', page_of(row), str(row) if words is None else words)


def session_page(session_id: UUID) -> str:
    """Where the session itself is shown."""
    return reverse("admin:streaming_streamsession_change", args=[session_id])


def bill_page(session_id: UUID) -> str:
    """Where the whole bill of a session is shown."""
    return reverse("admin:billing_usagerecord_change", args=[session_id])


def bill_link(session_id: UUID | None) -> SafeString | str:
    """A link to the whole bill of a session."""
    if session_id is None:
        return "-"
    return format_html('<a href="{}">{}</a>', bill_page(session_id), session_id)


def short_bill_link(session_id: UUID | None) -> SafeString | str:
    """The same for a list: as much of the id as is enough to find the session by."""
    if session_id is None:
        return "-"
    return format_html(
        '<a href="{}" title="{}" class="billing-id">{}…</a>',
        bill_page(session_id), session_id, str(session_id)[:SHORT_ID],
    )  # fmt: skip
