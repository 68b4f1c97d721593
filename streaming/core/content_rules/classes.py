"""Characters and classes of Python's regular expressions, as RE2 reads them.

RE2's own ``\\w``, ``\\d``, ``\\s`` and ``\\b`` know only ASCII. No class ever contains the two marks for
the beginning and the end of the text.
"""

from __future__ import annotations

# The typing of the standard library does not know the parser's own modules.
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any

from streaming.core.content_rules.letters import is_word_character
from streaming.core.content_rules.rule import RuleRefused

BEGINNING, END = "\ufdd0", "\ufdd1"
"""Noncharacters: they stand for the text's edges, and are replaced where a text has them itself."""

_EDGES = r"\x{FDD0}\x{FDD1}"
WORD = r"\p{L}\p{M}\p{N}_"
IN_WORD, NOT_IN_WORD = f"[{WORD}]", f"[^{WORD}]"
ANY = "(?s:.)"
"""Any character, and the edges too: what stands before a match is not part of it."""

_SPACE = r"\t-\r\x{1C}-\x{1F} \x{85}\p{Z}"
_INSIDE = {
    op.CATEGORY_DIGIT: r"\p{Nd}",
    op.CATEGORY_WORD: WORD,
    op.CATEGORY_SPACE: _SPACE,
}
_OUTSIDE = {
    op.CATEGORY_NOT_DIGIT: r"\p{Nd}",
    op.CATEGORY_NOT_WORD: WORD,
    op.CATEGORY_NOT_SPACE: _SPACE,
}
_MOST_LOOKED_AT = 1000
EITHER = frozenset({True, False})


def literal(code: int) -> str:
    """One character."""
    return rf"\x{{{code:X}}}"


def all_but(code: int) -> str:
    """``[^x]``."""
    return f"[^{literal(code)}{_EDGES}]"


def dot(matches_newline: bool) -> str:
    """``.``."""
    return f"[^{_EDGES}]" if matches_newline else rf"[^\n{_EDGES}]"


def bracket(items: list[tuple[Any, Any]]) -> str:
    """What stands in brackets. Raises ``RuleRefused``."""
    negated = bool(items) and items[0][0] is op.NEGATE
    inside, outside = [], []
    for kind, value in items[1:] if negated else items:
        if kind is op.LITERAL:
            inside.append(literal(value))
        elif kind is op.RANGE:
            inside.append(f"{literal(value[0])}-{literal(value[1])}")
        elif value in _INSIDE:
            inside.append(_INSIDE[value])
        else:
            outside.append(_OUTSIDE[value])
    if negated:
        if not outside:
            return f"[^{''.join(inside)}{_EDGES}]"
        if inside or len(outside) > 1:
            raise RuleRefused(r"\W, \D and \S cannot stand in a negated class beside others.")
        return f"[{outside[0]}]"
    parts = [f"[{''.join(inside)}]"] if inside else []
    parts += [f"[^{one}{_EDGES}]" for one in outside]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def kinds(kind: Any, value: Any) -> frozenset[bool]:
    """Whether the characters of a literal or class are word characters: True, False, or both."""
    if kind is op.LITERAL:
        return frozenset({is_word_character(chr(value))})
    if kind is op.RANGE and value[1] - value[0] < _MOST_LOOKED_AT:
        return frozenset(is_word_character(chr(code)) for code in range(value[0], value[1] + 1))
    if kind is op.CATEGORY:
        if value in (op.CATEGORY_WORD, op.CATEGORY_DIGIT):
            return frozenset({True})
        if value in (op.CATEGORY_NOT_WORD, op.CATEGORY_SPACE):
            return frozenset({False})
    if kind is op.IN and value[0][0] is not op.NEGATE:
        return frozenset().union(*(kinds(*item) for item in value))
    return EITHER
