"""Filters of the desk's templates: ``{% load desk %}``."""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils.safestring import SafeString

from streaming.admin import badges, times

register = template.Library()


@register.filter
def local(at: datetime | None) -> str:
    """``{{ session.created_at|local }}``: in the viewer's zone, with its name."""
    return times.local(at)


@register.filter
def precisely(at: datetime | None) -> str:
    """The same with milliseconds."""
    return times.local(at, precise=True)


@register.filter
def clock(at: datetime | None) -> str:
    """The time of day alone, with milliseconds."""
    return times.clock(at)


@register.filter
def badge(word: str | None, tone: str = "") -> SafeString | str:
    """``{{ session.state|badge }}``, or in a tone of its own: ``{{ "open"|badge:"bad" }}``."""
    return badges.badge(word, tone)
