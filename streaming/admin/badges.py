"""States, outcomes and severities as words in a tone; the style sheet knows the tones."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString

TONES = {
    "good": [
        "completed", "up", "active", "closed", "exact", "verified", "done", "yes", "alive", "on",
        "ok", "delivered",
    ],
    "info": ["created", "streaming", "recovered", "text", "addresses", "migration", "info"],
    "warn": [
        "recovering", "suspended", "suspect", "draining", "regenerated", "half_open", "half-open",
        "needed", "noticed", "pending", "unverifiable", "unknown", "warning", "stale",
    ],
    "bad": ["failed", "lost", "missed", "down", "refused", "overdue", "dead", "error", "broken", "no"],
}  # fmt: skip
"""What is in none of them is quiet: stopped, cancelled, abandoned, left, drained, off, …"""

_TONE_OF = {word: tone for tone, words in TONES.items() for word in words}


def tone_of(word: str) -> str:
    """The class of a word's tone: ``is-good``, ``is-info``, ``is-warn``, ``is-bad`` or ``is-quiet``."""
    return f"is-{_TONE_OF.get(word, 'quiet')}"


def badge(word: str | None, tone: str = "") -> SafeString | str:
    """The word in its tone, or in ``tone`` ("good", "bad", …); a dash for no word.

    A circuit is the other way round: ``badge(node.circuit, CIRCUIT[node.circuit])``.
    """
    if not word:
        return "-"
    kind = f"is-{tone}" if tone else tone_of(word)
    return format_html(
        '<span class="unbroken-badge {}">{}</span>', kind, str(word).replace("_", " ")
    )


CIRCUIT = {"closed": "good", "half_open": "warn", "open": "bad"}
"""The tones of a node's circuit: an open one lets nothing through."""
