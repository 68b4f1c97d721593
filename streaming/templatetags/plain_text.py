"""``{% load plain_text %}``: what strangers wrote, in templates."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.safestring import SafeString

from streaming.admin import plain_text

register = template.Library()


@register.filter
def visible(text: Any) -> SafeString:
    """``{{ attempt.end_detail|visible }}``: escaped, with its controls spelled out."""
    return plain_text.visible(text)


@register.filter
def named(text: Any) -> str:
    """The same for attributes and titles: escaped as everything is, controls spelled out."""
    return plain_text.named(text)


@register.filter
def grouped(number: int | None) -> str:
    """``1,234``; a dash for none."""
    return "-" if number is None else f"{number:,}"
