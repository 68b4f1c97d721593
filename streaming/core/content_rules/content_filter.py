"""The output filter of one answer.

Two stages, one behind the other. The first stops and masks. The second flags: it looks at what is
shown, so it does not flag what was masked, and its rules keep nothing from being masked.

What comes out depends on the text alone, not on how it was cut into tokens; and it can be gone on with
from any place at which tokens have been let pass, with nothing but the last character that was shown:
a new filter with ``before`` finds what the old one would have found.
"""

from __future__ import annotations

from collections.abc import Sequence

from streaming.core.chunks import Token
from streaming.core.content_rules.matcher import Matcher
from streaming.core.content_rules.rule import Action, Rule
from streaming.core.content_rules.stage import Hit, Stage

PIECE = 200
"""Characters of a whole text that are looked at in one go."""

_SEVERITY = {action: number for number, action in enumerate(Action)}


class RuleSet:
    """Rules, ready to be applied to any number of answers.

    ``hold``: the most characters that are held back, and of a match. Raises ``RuleRefused``.
    """

    def __init__(self, rules: Sequence[Rule], hold: int) -> None:
        ordered = sorted(rules, key=lambda rule: _SEVERITY[rule.action])
        self.rules = tuple(ordered)
        self._matchers = [
            Matcher(some, hold)
            for some in (
                [rule for rule in ordered if rule.action is not Action.FLAG],
                [rule for rule in ordered if rule.action is Action.FLAG],
            )
            if some
        ]

    def __repr__(self) -> str:
        return f"<RuleSet {len(self.rules)} rules>"

    def filter(self, before: str = "") -> ContentFilter:
        """A filter for an answer of which the reader has what ends with ``before``."""
        return ContentFilter([Stage(matcher, before) for matcher in self._matchers])


class ContentFilter:
    """See the module. Tokens keep their ids; their text changes."""

    __slots__ = ("_hits", "_passed", "_stages", "stopped_by")

    def __init__(self, stages: list[Stage]) -> None:
        self._stages = stages
        self._hits: list[Hit] = []
        self._passed = 0
        self.stopped_by: Rule | None = None
        """The rule that has ended the answer."""

    @property
    def held_tokens(self) -> int:
        return sum(stage.held_tokens for stage in self._stages)

    def feed(self, tokens: list[Token]) -> tuple[list[Token], list[Hit]]:
        """What may be shown now, and what was found in it. Hits count the tokens let pass so far."""
        return self._go_on(tokens, is_whole=False)

    def flush(self) -> tuple[list[Token], list[Hit]]:
        """The rest, when the answer has ended."""
        return self._go_on([], is_whole=True)

    def _go_on(self, tokens: list[Token], *, is_whole: bool) -> tuple[list[Token], list[Hit]]:
        for stage in self._stages:
            released, hits = stage.feed(tokens)
            self._hits += hits
            if is_whole:
                rest, hits = stage.flush()
                released, self._hits = released + rest, self._hits + hits
            if stage.stopped:
                is_whole = True
            tokens = released
        self._passed += len(tokens)
        if is_whole or not self._hits:
            passed, self._hits = self._hits, []
        else:
            passed = [hit for hit in self._hits if hit.token <= self._passed]
            self._hits = [hit for hit in self._hits if hit.token > self._passed]
        for rule, _ in passed:
            if rule.action is Action.STOP:
                self.stopped_by = rule
        return tokens, sorted(passed, key=lambda hit: hit.token)


def filtered(rules: RuleSet, text: str) -> tuple[str, list[Rule]]:
    """What becomes of a whole text, and the rules that matched, one for each time."""
    content_filter = rules.filter()
    shown, found = [], []
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    for piece in pieces:
        tokens, hits = content_filter.feed([Token(0, piece)])
        shown += tokens
        found += hits
        if content_filter.stopped_by is not None:
            break
    else:
        tokens, hits = content_filter.flush()
        shown += tokens
        found += hits
    return "".join(token.text for token in shown), [hit.rule for hit in found]
