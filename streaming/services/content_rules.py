"""Content rules as people keep them: checked before they are stored, tried before they are in force."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from django.db.models import Q

from streaming.conf import conf
from streaming.core.content_rules import (
    Action,
    Rule,
    RuleRefused,
    RuleSet,
    filtered,
    is_unseen,
)
from streaming.models import ContentRule

LONGEST_SAMPLE = 20_000
"""Characters of a text that rules may be tried on."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What becomes of a text: ``shown`` of it, and how often which rule matched, with its action."""

    shown: str
    hits: tuple[tuple[str, str, int], ...]
    is_stopped: bool


def as_rule(row: ContentRule) -> Rule:
    """A stored rule as the filter takes it."""
    return Rule(
        name=row.name,
        pattern=row.pattern,
        action=Action(row.action),
        is_regex=row.kind == ContentRule.Kind.REGEX,
        case_sensitive=row.case_sensitive,
        replacement=row.replacement,
    )


def check(row: ContentRule) -> None:
    """Raises ``RuleRefused``, which says why, if a stream cannot be searched for it."""
    RuleSet([as_rule(row)], conf().filter_hold_characters)


def check_replacement(row: ContentRule) -> None:
    """Raises ``RuleRefused`` where readers would not see that something was masked.

    What stood around it would become one word, which may be one that another rule forbids.
    """
    if row.action == Action.MASK and is_unseen(row.replacement):
        raise RuleRefused("A mask needs something that is seen in place of a match, such as ***.")


def try_on(text: str, *, tenant_id: int | None) -> Tried:
    """What the rules in force make of an answer with this text, for a tenant; None: for any.

    Stored rules that are not applied are left out here, too. Raises ``ValueError``: it is too long.
    """
    if len(text) > LONGEST_SAMPLE:
        raise ValueError(f"A text to be tried has {LONGEST_SAMPLE} characters at most.")
    rows = ContentRule.objects.filter(
        Q(tenant=None) | Q(tenant=tenant_id) if tenant_id is not None else Q(tenant=None),
        is_active=True,
    ).order_by("tenant_id", "id")
    usable = [as_rule(row) for row in rows if _is_usable(row)]
    return _tried(usable, text)


def try_rule(row: ContentRule, text: str) -> Tried:
    """What one rule, stored or not yet, makes of a text. Raises ``RuleRefused`` or ``ValueError``."""
    if len(text) > LONGEST_SAMPLE:
        raise ValueError(f"A text to be tried has {LONGEST_SAMPLE} characters at most.")
    return _tried([as_rule(row)], text)


def _tried(rules: list[Rule], text: str) -> Tried:
    shown, found = filtered(RuleSet(rules, conf().filter_hold_characters), text)
    counted = Counter((rule.name, rule.action.value) for rule in found)
    return Tried(
        shown,
        tuple((name, action, count) for (name, action), count in counted.items()),
        any(rule.action is Action.STOP for rule in found),
    )


def _is_usable(row: ContentRule) -> bool:
    try:
        check(row)
    except RuleRefused:
        return False
    return True
