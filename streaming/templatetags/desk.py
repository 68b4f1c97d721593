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


@register.filter
def circuit(word: str) -> SafeString | str:
    """A node's circuit: open is bad."""
    return badges.badge(word, badges.CIRCUIT.get(word, ""))


@register.filter
def words(stored: str | None) -> str:
    """A cause or a kind as people write it: ``out_of_memory`` is "out of memory"."""
    return (stored or "-").replace("_", " ")


@register.filter
def share(part: float | None) -> str:
    """0 to 1 as a percentage."""
    return "–" if part is None else f"{part:.0%}"


@register.filter
def ago(seconds: float | None) -> str:
    """An age in seconds, in words."""
    return "never" if seconds is None else times.ago(seconds)
