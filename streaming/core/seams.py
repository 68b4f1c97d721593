"""Seam grades: how a continuation is joined on to what the reader has."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from streaming.core.chunks import UNKNOWN_ID, Token
from streaming.core.failures import AttemptFailed, Cause
from streaming.core.nodes import NodeOptions
from streaming.core.templates import spells_control


class SeamGrade(enum.Enum):
    EXACT = "exact"  # continued from token ids
    TEXT = "text"  # continued from text
    REGENERATED = "regenerated"  # asked again from the start, compared, suppressed
    REFUSED = "refused"


def seam_grade(
    options: NodeOptions, *, prompt_by_ids: bool, ids_known: bool, plain_tokens: bool, answer: str
) -> SeamGrade:
    """The best grade with which a node with these options can continue ``answer``.

    ``prompt_by_ids``: the prompt's token ids are known; ``ids_known``: so are all of the answer's;
    ``plain_tokens``: the engine can tokenise text without reading control tokens in it. Where it
    can't, text that spells a control token is not sent as text: it would become that token.
    """
    if options.continuation == "ids" and prompt_by_ids:
        if ids_known:
            return SeamGrade.EXACT
        if plain_tokens:
            return SeamGrade.TEXT
    if options.continuation == "regenerate" or not options.template:
        return SeamGrade.REGENERATED
    return SeamGrade.REGENERATED if spells_control(answer) else SeamGrade.TEXT


class Suppressor:
    """Compares a regenerated answer with what the reader has, and lets only what is new pass.

    ``token_ids`` are those of the log. Raises ``AttemptFailed(MISMATCH)`` at the first character
    that differs.
    """

    __slots__ = ("_joined", "_known", "_position", "_token_ids", "repeated_tokens")

    def __init__(self, known: str, token_ids: Sequence[int]) -> None:
        self._known = known
        self._token_ids = token_ids
        self._position = 0
        self._joined = False
        self.repeated_tokens = 0

    @property
    def done(self) -> bool:
        """Whether all that the reader has was repeated."""
        return self._position >= len(self._known)

    def feed(self, tokens: list[Token]) -> list[Token]:
        """The tokens that are new; of one that is partly new, the new text."""
        fresh = []
        for token in tokens:
            if self.done:
                if self._joined:
                    fresh.append(token)
                elif not token.text and self._is_in_log(token):
                    self.repeated_tokens += 1
                else:
                    fresh.append(self._join(token))
                continue
            have = len(token.text)
            known = self._known[self._position : self._position + have]
            if not token.text.startswith(known):
                raise AttemptFailed(
                    Cause.MISMATCH, f"the regenerated answer differs at character {self._position}"
                )
            self._position += len(known)
            if have > len(known):
                self._joined = True
                fresh.append(Token(UNKNOWN_ID, token.text[len(known) :]))
            else:
                self.repeated_tokens += 1
        return fresh

    def _is_in_log(self, token: Token) -> bool:
        """Whether the log, which may end with the beginning of a character, has it already."""
        at = self.repeated_tokens
        return at < len(self._token_ids) and self._token_ids[at] == token.id

    def _join(self, token: Token) -> Token:
        """The first new token. Ids that do not follow on those of the log are as good as unknown."""
        self._joined = True
        follows = self.repeated_tokens >= len(self._token_ids)
        return token if follows else Token(UNKNOWN_ID, token.text)
