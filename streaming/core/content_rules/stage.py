"""Applies rules to the tokens of an answer, holding back no more than may be part of a match."""

from __future__ import annotations

from typing import NamedTuple

from streaming.core.chunks import Token
from streaming.core.content_rules.matcher import Matcher
from streaming.core.content_rules.rule import Action, Rule


class Hit(NamedTuple):
    """``rule`` matched; its match ends in the token with this number, of those that were let pass.

    Of a stop: the number of the last token before it.
    """

    rule: Rule
    token: int


class _Edit(NamedTuple):
    start: int
    end: int
    rule: Rule


class Stage:
    """The state of one answer. ``before``: the last character that its reader has."""

    __slots__ = (
        "_before",
        "_edits",
        "_held",
        "_matcher",
        "_passed",
        "_settled",
        "_text",
        "stopped",
    )

    def __init__(self, matcher: Matcher, before: str = "") -> None:
        self._matcher = matcher
        self._before = before
        self._held: list[Token] = []
        self._text = ""
        """That of what is held."""
        self._settled = 0
        """How much of it is decided; it waits for the rest of its token, or of another match."""
        self._edits: list[_Edit] = []
        self._passed = 0
        self.stopped = False

    @property
    def held_tokens(self) -> int:
        return len(self._held)

    def feed(self, tokens: list[Token]) -> tuple[list[Token], list[Hit]]:
        """What may pass now, and what was found in it."""
        self._held += tokens
        self._text += "".join(token.text for token in tokens)
        return self._go_on(is_whole=False)

    def flush(self) -> tuple[list[Token], list[Hit]]:
        """What passes when nothing follows any more."""
        return self._go_on(is_whole=True)

    def _go_on(self, *, is_whole: bool) -> tuple[list[Token], list[Hit]]:
        if self.stopped:
            self._held.clear()
            return [], []
        while True:
            settled, match = self._matcher.look(self._before, self._text[self._settled :], is_whole)
            if settled:
                self._before = self._text[self._settled + settled - 1]
                self._settled += settled
            if match is None:
                break
            end = self._settled + match.end - match.start
            if match.rule.action is Action.STOP:
                return self._stop(match.rule)
            self._edits.append(_Edit(self._settled, end, match.rule))
            if match.rule.action is Action.MASK:
                # What follows stands behind what the reader gets, not behind what was masked.
                self._before = match.rule.replacement[-1:] or self._before
            else:
                self._before = self._text[end - 1]
            self._settled = end
        return self._release(is_whole)

    def _release(self, is_whole: bool) -> tuple[list[Token], list[Hit]]:
        """Let go of the tokens that end in what is settled, and not inside a match.

        A token without text is the beginning of a character: it goes with the one that ends it.
        """
        count = size = position = 0
        if is_whole:
            count, size = len(self._held), len(self._text)
        else:
            for number, token in enumerate(self._held, 1):
                position += len(token.text)
                if position > self._settled:
                    break
                if token.text and not any(edit.start < position < edit.end for edit in self._edits):
                    count, size = number, position
        released, self._held = self._held[:count], self._held[count:]
        self._text = self._text[size:]
        self._settled -= size
        if not self._edits:
            self._passed += count
            return released, []
        edits = [edit for edit in self._edits if edit.end <= size]
        self._edits = [
            _Edit(edit.start - size, edit.end - size, edit.rule)
            for edit in self._edits
            if edit.end > size
        ]
        return self._edited(released, edits)

    def _edited(self, tokens: list[Token], edits: list[_Edit]) -> tuple[list[Token], list[Hit]]:
        """``tokens`` as the reader gets them. A replacement goes with the token that ends a match."""
        edited: list[Token] = []
        hits: list[Hit] = []
        waiting = list(reversed(edits))
        position = 0
        for token in tokens:
            begin, position = position, position + len(token.text)
            at, parts = begin, []
            while waiting and waiting[-1].start < position:
                edit = waiting[-1]
                ends_here = edit.end <= position
                if edit.rule.action is Action.MASK:
                    parts.append(token.text[at - begin : max(at, edit.start) - begin])
                    at = min(edit.end, position)
                    if ends_here:
                        parts.append(edit.rule.replacement)
                if not ends_here:
                    break
                hits.append(Hit(edit.rule, self._passed + len(edited) + 1))
                waiting.pop()
            parts.append(token.text[at - begin :])
            edited.append(Token(token.id, "".join(parts)))
        self._passed += len(tokens)
        return edited, hits

    def _stop(self, rule: Rule) -> tuple[list[Token], list[Hit]]:
        """The answer ends before what is not settled: the tokens up to there, the last one cut off."""
        kept: list[Token] = []
        position = 0
        for token in self._held:
            left = self._settled - position
            if left <= 0:
                break
            kept.append(Token(token.id, token.text[:left]))
            position += len(token.text)
        while kept and not kept[-1].text:  # the beginning of a character that is not shown
            kept.pop()
        self.stopped = True
        self._held = []
        released, hits = self._edited(kept, self._edits)
        return released, [*hits, Hit(rule, self._passed)]
