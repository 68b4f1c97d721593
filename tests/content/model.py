"""What content rules mean, said again in the simplest way, however slow: Python's own ``re``, every span."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from streaming.core.content_rules import Action, Rule

EDGE = r"(?![^\W_])"
UNSEEN = "[\u200b\u2060]"
WIDE = 0xFEE0
"""Between a letter and its fullwidth form."""
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
    possible = [_anywhere(rule) for rule in rules]
    for start in range(len(text)):
        if not any(one.match(before + text, len(before) + start) for one in possible):
            continue
        for end in range(min(len(text), start + longest), start, -1):
            for rule in rules:
                if matches(rule, before, text, start, end):
                    return start, end, rule
    return None


def _pattern(rule: Rule) -> tuple[str, re.RegexFlag]:
    pattern = rule.pattern
    if not rule.is_regex:
        seen = " ".join(re.sub(UNSEEN, "", pattern).split())
        parts = [
            r"\s[\s*_`~\u200b\u2060]*"
            if letter == " "
            else f"[{re.escape(letter + _wide(letter))}]"
            for letter in map(_narrow, seen)
        ]
        pattern = r"[*_`~\u200b\u2060]*".join(parts)
        if re.match(r"[^\W_]", seen):
            pattern = r"(?<![^\W_])" + pattern
        if re.search(r"[^\W_]\Z", seen):
            pattern += EDGE
    return pattern, re.NOFLAG if rule.case_sensitive else re.IGNORECASE


def _narrow(letter: str) -> str:
    return chr(ord(letter) - WIDE) if ord(letter) > WIDE else letter


def _wide(letter: str) -> str:
    return chr(ord(letter) + WIDE) if "!" <= letter <= "~" else ""


@cache
def _anywhere(rule: Rule) -> re.Pattern[str]:
    """Matches where the rule does, at some length."""
    pattern, flags = _pattern(rule)
    return re.compile(pattern.replace("$", r"\Z"), flags)


def matches(rule: Rule, before: str, text: str, start: int, end: int) -> bool:
    """Whether the rule matches exactly this span."""
    all_of_it = before + text
    start, end = start + len(before), end + len(before)
    pattern, flags = _pattern(rule)
    pattern, edge = _split_edge(pattern)
    if edge is not None:
        return (
            re.compile(f"(?:{pattern})", flags).fullmatch(all_of_it, start, end) is not None
            and re.compile(edge).match(all_of_it, end) is not None
        )
    exactly = re.compile(rf"(?:{pattern})(?=(?s:.){{{len(all_of_it) - end}}}\Z)", flags)
    return exactly.match(all_of_it, start) is not None


def _split_edge(pattern: str) -> tuple[str, str | None]:
    """What has to follow a match, apart from it: what ``fullmatch`` ends at hides that from it. None:
    it stands somewhere inside."""
    for edge in (r"\b", EDGE, "$"):
        if pattern.endswith(edge):
            pattern = pattern.removesuffix(edge)
            break
    else:
        edge = ""
    is_apart = r"\b" not in pattern.removeprefix(r"\b") and "$" not in pattern
    return pattern, edge.replace("$", r"\Z") if is_apart else None
