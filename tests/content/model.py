"""What content rules mean, said again in the simplest way, however slow: Python's own ``re``, every span."""

from __future__ import annotations

import re
from collections.abc import Sequence

from streaming.core.content_rules import Action, Rule

ORDER = (Action.STOP, Action.MASK, Action.FLAG)


def whole(rules: Sequence[Rule], text: str, longest: int) -> tuple[str, list[str]]:
    """What is shown of a whole text, and the names of the rules that matched."""
    ordered = sorted(rules, key=lambda rule: ORDER.index(rule.action))
    shown, first = _pass(
        [rule for rule in ordered if rule.action is not Action.FLAG], text, longest
    )
    shown, second = _pass([rule for rule in ordered if rule.action is Action.FLAG], shown, longest)
    return shown, sorted(first + second)


def _pass(rules: Sequence[Rule], text: str, longest: int) -> tuple[str, list[str]]:
    shown, rest, names = "", text, []
    while True:
        found = leftmost(rules, shown, rest, longest)
        if found is None:
            return shown + rest, names
        start, end, rule = found
        names.append(rule.name)
        shown += rest[:start]
        if rule.action is Action.STOP:
            return shown, names
        shown += rule.replacement if rule.action is Action.MASK else rest[start:end]
        rest = rest[end:]


def leftmost(
    rules: Sequence[Rule], before: str, text: str, longest: int
) -> tuple[int, int, Rule] | None:
    """The match that counts first, with its place in ``text``."""
    for start in range(len(text)):
        for end in range(min(len(text), start + longest), start, -1):
            for rule in rules:
                if matches(rule, before, text, start, end):
                    return start, end, rule
    return None


def matches(rule: Rule, before: str, text: str, start: int, end: int) -> bool:
    """Whether the rule matches exactly this span."""
    all_of_it = before + text
    start, end = start + len(before), end + len(before)
    flags = re.NOFLAG if rule.case_sensitive else re.IGNORECASE
    pattern = rule.pattern
    if not rule.is_regex:
        pattern = re.escape(pattern)
        if re.match(r"\w", rule.pattern):
            pattern = r"(?<!\w)" + pattern
        if re.search(r"\w\Z", rule.pattern):
            pattern += r"(?!\w)"
    pattern = pattern.replace("$", r"\Z")
    exactly = re.compile(rf"(?:{pattern})(?=(?s:.){{{len(all_of_it) - end}}}\Z)", flags)
    return exactly.match(all_of_it, start) is not None
