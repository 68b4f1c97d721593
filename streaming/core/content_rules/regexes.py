"""Finds the matches of several regular expressions at once, in text that is still growing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import re2
from re2 import _re2

from streaming.core.content_rules.classes import BEGINNING, END
from streaming.core.content_rules.regex import Branch, branches
from streaming.core.content_rules.rule import Rule, RuleRefused

MEMORY_OF_ONE, MEMORY = 1 << 20, 8 << 20
"""Bytes that RE2 may use for one rule's program and its states, and for that of many rules."""

LARGEST = 8_000
"""Instructions of one rule's program: where the states do not fit into the memory, a search takes
time by the instructions, too."""

_SEARCH, _HERE = _re2.RE2.Anchor.UNANCHORED, _re2.RE2.Anchor.ANCHOR_START


class Regex(NamedTuple):
    """One rule's pattern. ``plain`` and ``bounded`` match the character before, too, and ``bounded``
    the one behind."""

    number: int
    branches: list[Branch]
    plain: Any
    bounded: Any


def compiled(index: int, rule: Rule, longest: int) -> Regex:
    """Raises ``RuleRefused``."""
    found = branches(rule.pattern, case_sensitive=rule.case_sensitive, longest=longest)
    regex = Regex(
        index,
        found,
        _program([one.matches for one in found if not one.behind]),
        _program([one.matches for one in found if one.behind]),
    )
    beginnings = _program([one.may_match for one in found if one.may_match])
    for program in (regex.plain, regex.bounded, beginnings):
        if program is not None and program.ProgramSize() > LARGEST:
            raise RuleRefused("It is too large: shorten it, or its counted repeats.")
    return regex


def _program(patterns: Sequence[str], memory: int = MEMORY_OF_ONE) -> Any:
    """One program for all of them, None for none. Raises ``RuleRefused``."""
    if not patterns:
        return None
    options = re2.Options()
    options.longest_match = True
    options.never_capture = True
    options.log_errors = False
    options.max_mem = memory
    program = _re2.RE2("|".join(patterns).encode("utf-8", "replace"), options)
    if not program.ok():
        raise RuleRefused("It is too large: shorten it, or its counted repeats.")
    return program


class _Group(NamedTuple):
    """Rules that are searched for together."""

    matches: Any
    beginnings: Any


class Regexes:
    """Matches have at most ``longest`` characters; what is longer is none."""

    def __init__(self, regexes: Sequence[Regex], longest: int) -> None:
        self._regexes = regexes
        self._longest = longest
        self._groups = list(_grouped(regexes))

    def first(self, before: str, text: str, is_whole: bool) -> tuple[int | None, int | None]:
        """Where the first match begins, however long it is, and where the first beginning of one.

        ``before`` is the character before the text; ``is_whole``: nothing follows any more.
        """
        data, is_ascii = _encoded(before, text, is_whole)
        match: int | None = None
        beginning: int | None = None
        # What began earlier than this is too long already for more text to make anything of it.
        late = max(0, len(text) - self._longest)
        late_byte = late and len(_encoded(before, text[:late], False)[0]) - len(
            (text[late - 1]).encode("utf-8", "replace")
        )
        for group in self._groups:
            span = group.matches.Match(_SEARCH, data, 0, len(data))[0]
            if span[0] >= 0:
                at = span[0] if is_ascii else len(data[: span[0]].decode())
                match = at if match is None else min(match, at)
            if is_whole or group.beginnings is None:
                continue
            span = group.beginnings.Match(_SEARCH, data, late_byte, len(data))[0]
            if span[0] >= 0:
                at = span[0] if is_ascii else len(data[: span[0]].decode())
                beginning = at if beginning is None else min(beginning, at)
        return match, None if beginning == len(text) else beginning

    def longest_at(
        self, start: int, before: str, text: str, is_whole: bool
    ) -> tuple[int, int] | None:
        """The end of the longest match at ``start``, and the index of its rule."""
        before = text[start - 1] if start else before
        window = text[start : start + self._longest + 1]
        reaches_end = is_whole and start + self._longest >= len(text)
        data, _ = _encoded(before, window, reaches_end)
        within, _ = _encoded(before, window[: self._longest], False)
        best: tuple[int, int] | None = None
        for regex in self._regexes:
            for program, seen, behind in (
                (regex.plain, within, 0), (regex.bounded, data, 1),
            ):  # fmt: skip
                if program is None:
                    continue
                span = program.Match(_HERE, seen, 0, len(seen))[0]
                if span[0] < 0:
                    continue
                size = len(seen[: span[1]].decode()) - 1 - behind
                if best is None or start + size > best[0]:
                    best = start + size, regex.number
        return best


def _grouped(regexes: Sequence[Regex]) -> Iterable[_Group]:
    """One group, or more where they are too large together."""
    if not regexes:
        return
    found = [branch for regex in regexes for branch in regex.branches]
    try:
        yield _Group(
            _program([one.matches for one in found], MEMORY),
            _program([one.may_match for one in found if one.may_match], MEMORY),
        )
    except RuleRefused:
        if len(regexes) == 1:
            raise
        half = len(regexes) // 2
        yield from _grouped(regexes[:half])
        yield from _grouped(regexes[half:])


def _encoded(before: str, text: str, is_whole: bool) -> tuple[bytes, bool]:
    """What RE2 reads, and whether each character is one byte."""
    if BEGINNING in text or END in text:
        text = text.replace(BEGINNING, "\ufffd").replace(END, "\ufffd")
    if not before:
        before = BEGINNING
    elif before in (BEGINNING, END):
        before = "\ufffd"
    data = f"{before}{text}{END if is_whole else ''}".encode("utf-8", "replace")
    return data, len(data) == len(text) + 1
