"""Regular expressions on a stream: what they match, and what may be the beginning of a match.

A pattern is read by Python's parser, and written twice from its tree for RE2, which is linear in the
text whatever the pattern: once as it is, and once as the pattern of the proper beginnings of its
matches. With that one, anchored at the end, the last characters are found that more text could turn
into a match; everything before them is settled.

    beginnings(ABC) = beginnings(A) | A beginnings(B) | AB beginnings(C)
    beginnings(A{m,n}) = A{0,n-1} beginnings(A)

Alternatives are tried together and the longest wins, so a lazy repeat is as good as a greedy one.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from streaming.core.content_rules.classes import (
    ANY,
    BEGINNING,
    EITHER,
    END,
    IN_WORD,
    NOT_IN_WORD,
    all_but,
    bracket,
    dot,
    kinds,
    literal,
)
from streaming.core.content_rules.rule import RuleRefused

MOST_BRANCHES = 100
_EVER = 1 << 30
"""The width of what has no end."""

_REFUSED = {
    op.ASSERT: "Lookahead and lookbehind cannot be used",
    op.ASSERT_NOT: "Lookahead and lookbehind cannot be used",
    op.GROUPREF: "Backreferences cannot be used",
    op.GROUPREF_EXISTS: "Conditional groups cannot be used",
    op.ATOMIC_GROUP: "Atomic groups cannot be used",
    op.POSSESSIVE_REPEAT: "Possessive repeats cannot be used",
}
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT)
_BEGINS = (op.AT_BEGINNING, op.AT_BEGINNING_STRING)
_ENDS = (op.AT_END, op.AT_END_STRING)
Items = Sequence[tuple[Any, Any]]


class Branch(NamedTuple):
    """One alternative: a character before it, what it matches, and maybe a character behind it.

    ``beginnings`` is None where nothing of it can be there without all of it.
    """

    before: str
    body: str
    beginnings: str | None
    behind: str

    @property
    def matches(self) -> str:
        """For RE2: the whole of it, with the characters around it."""
        return f"{self.before}(?:{self.body}){self.behind}"

    @property
    def may_match(self) -> str | None:
        """For RE2: what it begins with, up to the end of the text; None: nothing."""
        options = [] if self.beginnings is None else [self.beginnings]
        if self.behind:
            options.append(self.body)
        return rf"{self.before}(?:{'|'.join(options)})\z" if options else None


class _Piece(NamedTuple):
    pattern: str
    beginnings: str | None
    least: int
    most: int


def branches(pattern: str, *, case_sensitive: bool, longest: int) -> list[Branch]:
    """The alternatives of ``pattern``; matches have at most ``longest`` characters.

    Raises ``RuleRefused`` for what a stream cannot be searched for.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = _parser.parse(pattern)
        found = list(islice(_split(list(tree), frozenset(), frozenset()), MOST_BRANCHES + 1))
        flags = tree.state.flags
        if flags & ~(re.UNICODE | re.IGNORECASE | re.DOTALL | re.VERBOSE):
            raise RuleRefused("Only the flags i, s and x can be used.")
        if len(found) > MOST_BRANCHES:
            raise RuleRefused(f"It comes to more than {MOST_BRANCHES} alternatives with edges.")
        writer = _Writer(bool(flags & re.DOTALL), longest)
        folds = not case_sensitive or bool(flags & re.IGNORECASE)
        return [_branch(writer, *one, folds=folds) for one in found]
    except (re.error, OverflowError, Warning) as exc:
        raise RuleRefused(f"This is no regular expression: {exc}.") from exc
    except RecursionError as exc:
        raise RuleRefused("It is nested too deeply.") from exc


def _branch(
    writer: _Writer, left: frozenset[Any], items: Items, right: frozenset[Any], *, folds: bool
) -> Branch:
    piece = writer.sequence(items)
    if piece.least == 0:
        raise RuleRefused("It would match where there is nothing.")
    if piece.least > writer.longest:
        raise RuleRefused(f"It matches only what is longer than {writer.longest} characters.")
    mode = "(?i:" if folds else "(?:"
    return Branch(
        _edge(left, _BEGINS, BEGINNING, _edge_kinds(items)) or ANY,
        f"{mode}{piece.pattern})",
        None if piece.beginnings is None else f"{mode}{piece.beginnings})",
        _edge(right, _ENDS, END, _edge_kinds(list(reversed(items)), backwards=True)),
    )


def _edge(wanted: frozenset[Any], edges: Sequence[Any], mark: str, kind: frozenset[bool]) -> str:
    """The character that has to stand beside the match; "" for none."""
    if not wanted:
        return ""
    is_edge = any(one in edges for one in wanted)
    if not all(one in edges or one is op.AT_BOUNDARY for one in wanted):
        raise RuleRefused(r"Only ^ and \b can stand before a match, $ and \b behind it.")
    if op.AT_BOUNDARY in wanted:
        if len(kind) != 1 or (is_edge and True not in kind):
            raise RuleRefused(r"\b must stand beside what is surely a letter, or surely none.")
        if not is_edge:
            return NOT_IN_WORD if True in kind else IN_WORD
    return literal(ord(mark))


def _split(
    items: list[tuple[Any, Any]], left: frozenset[Any], right: frozenset[Any]
) -> Iterator[tuple[frozenset[Any], Items, frozenset[Any]]]:
    """The alternatives, each with the edges that it wants, which can stand nowhere else."""
    first, last = 0, len(items)
    while first < last and items[first][0] is op.AT:
        left |= {items[first][1]}
        first += 1
    while last > first and items[last - 1][0] is op.AT:
        right |= {items[last - 1][1]}
        last -= 1
    items = items[first:last]
    for at in (0, -1):
        if items and (inner := _alternatives(*items[at])) and _has_edge(items[at : at + 1 or None]):
            for one in inner:
                joined = [*one, *items[1:]] if at == 0 else [*items[:-1], *one]
                yield from _split(joined, left, right)
            return
    yield left, items, right


def _alternatives(kind: Any, value: Any) -> list[list[tuple[Any, Any]]]:
    if kind is op.BRANCH:
        return [list(one) for one in value[1]]
    if kind is op.SUBPATTERN and not value[1] and not value[2]:
        return [list(value[3])]
    return []


def _has_edge(items: Items) -> bool:
    for kind, value in items:
        if kind is op.AT:
            return True
        if kind is op.BRANCH and any(_has_edge(list(one)) for one in value[1]):
            return True
        if kind is op.SUBPATTERN and _has_edge(list(value[3])):
            return True
    return False


def _edge_kinds(items: Items, *, backwards: bool = False) -> frozenset[bool]:
    """Which characters it can begin with: word characters, others, or both."""
    found: frozenset[bool] = frozenset()
    for kind, value in items:
        inner: list[Items] = []
        may_be_empty = False
        if kind is op.BRANCH:
            inner = [list(one) for one in value[1]]
        elif kind is op.SUBPATTERN:
            inner = [list(value[3])]
        elif kind in _REPEATS:
            inner = [list(value[2])]
            may_be_empty = value[0] == 0
        else:
            return found | kinds(kind, value)
        for one in inner:
            found |= _edge_kinds(list(reversed(one)) if backwards else one, backwards=backwards)
            may_be_empty = may_be_empty or not any(_width(item)[0] for item in one)
        if not may_be_empty:
            return found
    return found or EITHER


def _width(item: tuple[Any, Any]) -> tuple[int, int]:
    """The fewest and the most characters of one item."""
    kind, value = item
    if kind is op.BRANCH:
        widths = [_widths(one) for one in value[1]]
        return min(one[0] for one in widths), max(one[1] for one in widths)
    if kind is op.SUBPATTERN:
        return _widths(value[3])
    if kind in _REPEATS:
        least, most = _widths(value[2])
        return least * value[0], min(most * min(int(value[1]), _EVER), _EVER)
    return (0, 0) if kind is op.AT else (1, 1)


def _widths(items: Any) -> tuple[int, int]:
    each = [_width(item) for item in items]
    return sum(one[0] for one in each), min(sum(one[1] for one in each), _EVER)


class _Writer:
    """Writes a tree for RE2. What would match more than ``longest`` characters need not be told from
    what matches without end: neither is looked for any further than that."""

    def __init__(self, dot_matches_newline: bool, longest: int) -> None:
        self._dot = dot(dot_matches_newline)
        self.longest = longest

    def sequence(self, items: Any) -> _Piece:
        pieces = [self._item(*item) for item in items]
        beginnings: str | None = None
        for piece in reversed(pieces):
            options = [] if piece.beginnings is None else [piece.beginnings]
            if beginnings is not None:
                options.append(piece.pattern + beginnings)
            beginnings = _any_of(options)
        return _Piece(
            "".join(piece.pattern for piece in pieces),
            beginnings,
            sum(piece.least for piece in pieces),
            min(sum(piece.most for piece in pieces), _EVER),
        )

    def _item(self, kind: Any, value: Any) -> _Piece:
        if kind is op.LITERAL:
            return _Piece(literal(value), "(?:)", 1, 1)
        if kind is op.NOT_LITERAL:
            return _Piece(all_but(value), "(?:)", 1, 1)
        if kind is op.ANY:
            return _Piece(self._dot, "(?:)", 1, 1)
        if kind is op.IN:
            return _Piece(bracket(value), "(?:)", 1, 1)
        if kind is op.BRANCH:
            pieces = [self.sequence(one) for one in value[1]]
            return _Piece(
                f"(?:{'|'.join(piece.pattern for piece in pieces)})",
                _any_of([one.beginnings for one in pieces if one.beginnings is not None]),
                min(piece.least for piece in pieces),
                max(piece.most for piece in pieces),
            )
        if kind is op.SUBPATTERN:
            if value[1] or value[2]:
                raise RuleRefused("Flags must stand at the beginning, for the whole of it.")
            inner = self.sequence(value[3])
            return inner._replace(pattern=f"(?:{inner.pattern})")
        if kind in _REPEATS:
            return self._repeat(*value)
        if kind is op.AT:
            raise RuleRefused(
                r"^, $ and \b may only stand at the edges of it or of its alternatives."
            )
        raise RuleRefused(f"{_REFUSED.get(kind, str(kind))} on a stream.")

    def _repeat(self, least: int, most: Any, items: Any) -> _Piece:
        inner = self.sequence(items)
        if inner.most == 0 or int(most) == 0:
            return _Piece("(?:)", None, 0, 0)
        if inner.least == 0:
            least = 0
        elif least > self.longest:
            raise RuleRefused(f"It matches only what is longer than {self.longest} characters.")
        inner_pattern = f"(?:{inner.pattern})"
        if most is op.MAXREPEAT or int(most) > self.longest:
            count, fewer, widest = f"{{{least},}}", "*", _EVER
        else:
            count, fewer = f"{{{least},{most}}}", f"{{0,{int(most) - 1}}}"
            widest = min(inner.most * int(most), _EVER)
        return _Piece(
            inner_pattern + count,
            None if inner.beginnings is None else f"{inner_pattern}{fewer}{inner.beginnings}",
            inner.least * least,
            widest,
        )


def _any_of(options: list[str]) -> str | None:
    if not options:
        return None
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
