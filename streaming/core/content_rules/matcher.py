"""Where in an answer rules match, decided as early as it can be.

Of matches that overlap the one that begins first counts, of those that begin together the longest, of
those the more severe, or the one whose rule comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streaming.core.content_rules.regexes import Regexes, compiled
from streaming.core.content_rules.rule import Rule, RuleRefused
from streaming.core.content_rules.words import Words, spelling


class Match(NamedTuple):
    start: int
    end: int
    rule: Rule


class Matcher:
    """Some rules, ready. It holds no state of any text; many answers share it.

    ``longest``: the most characters of a match. Raises ``RuleRefused``.
    """

    def __init__(self, rules: Sequence[Rule], longest: int) -> None:
        self._rules = list(rules)
        words = [(index, rule) for index, rule in enumerate(rules) if not rule.is_regex]
        for _, rule in words:
            if len(spelling(rule)) > longest:
                raise RuleRefused(f"A word has {longest} characters at most.")
        regexes = [
            compiled(index, rule, longest) for index, rule in enumerate(rules) if rule.is_regex
        ]
        self._words = Words(words, longest) if words else None
        self._regexes = Regexes(regexes, longest) if regexes else None

    def look(self, before: str, text: str, is_whole: bool) -> tuple[int, Match | None]:
        """How much of ``text`` is settled, and the match that begins there, if that is settled too.

        ``before``: the character that the reader has before it. Nothing settled can be part of a
        match any more; what follows on it can, or is the match. ``is_whole``: nothing follows.
        """
        passed = 0
        while True:
            found = self._look(text[passed - 1] if passed else before, text[passed:], is_whole)
            if isinstance(found, tuple):
                settled, match = found
                if match is not None:
                    start, end, rule = match
                    match = Match(start + passed, end + passed, rule)
                return settled + passed, match
            passed += found

    def _look(self, before: str, text: str, is_whole: bool) -> tuple[int, Match | None] | int:
        """``look``; or how many characters are to be passed over before looking again."""
        length = len(text)
        word = self._words.first(before, text, is_whole) if self._words else None
        regex_at, open_at = (
            self._regexes.first(before, text, is_whole) if self._regexes else (None, None)
        )
        hold = length if open_at is None else open_at
        if word is not None and word.grows:
            hold = min(hold, word.start)
        start = length if regex_at is None else regex_at
        if word is not None and word.end is not None:
            start = min(start, word.start)
        if start >= hold:
            return hold, None
        best: tuple[int, int] | None = None
        if word is not None and word.end is not None and word.start == start:
            best = word.end, word.rule
        if self._regexes is not None and regex_at == start:
            other = self._regexes.longest_at(start, before, text, is_whole)
            if other is not None and (best is None or (-other[0], other[1]) < (-best[0], best[1])):
                best = other
        if best is None:  # what begins here is longer than a match may be
            return start + 1
        return start, Match(start, best[0], self._rules[best[1]])
