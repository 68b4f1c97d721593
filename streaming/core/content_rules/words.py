"""Finds words: as whole words, however they are written, in text that is still growing."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from streaming.core.content_rules.letters import FOLDS, JOINS
from streaming.core.content_rules.rule import Rule, RuleRefused


class Found(NamedTuple):
    """What begins at ``start``: the longest match so far, by this rule (end None: none yet), and
    whether more text could still make one, or a longer one."""

    start: int
    end: int | None
    rule: int
    grows: bool


class _Node:
    __slots__ = ("ends", "next")

    def __init__(self) -> None:
        self.next: dict[str, _Node] = {}
        self.ends: tuple[tuple[int, bool], ...] = ()
        """The rules whose word this is, and whether it has to end here."""


class _Trie(NamedTuple):
    root: _Node
    folds: bool
    begins: bool
    """Whether its words have to begin where a word begins."""


def spelling(rule: Rule) -> str:
    """The word of a rule. Raises ``RuleRefused``."""
    word = rule.pattern.strip()
    if not word:
        raise RuleRefused("A word needs at least one character.")
    return word


class Words:
    """The words of some rules. ``rules`` has them by their index, the more important one first.

    A word's edge has to be the edge of a word in the text where it is a letter, digit, mark or
    underscore of a script that shows where words end; other edges match anywhere.
    """

    def __init__(self, rules: Sequence[tuple[int, Rule]]) -> None:
        tries: dict[tuple[bool, bool], _Trie] = {}
        for index, rule in rules:
            word = spelling(rule)
            for spelt in {word, *(unicodedata.normalize(form, word) for form in ("NFC", "NFD"))}:
                begins, ends = JOINS[spelt[0]], JOINS[spelt[-1]]
                folds = not rule.case_sensitive
                trie = tries.setdefault((folds, begins), _Trie(_Node(), folds, begins))
                _add(trie.root, spelt.casefold() if folds else spelt, index, ends)
        self._anywhere = tuple(trie for trie in tries.values() if not trie.begins)
        self._all = tuple(tries.values())

    def first(self, before: str, text: str, is_whole: bool) -> Found | None:
        """The first place where a word stands or may be about to; ``before``: the character before.

        ``is_whole``: nothing follows any more.
        """
        anywhere, everything = self._anywhere, self._all
        inside = JOINS[before]
        for start, character in enumerate(text):
            for trie in anywhere if inside else everything:
                first = (FOLDS[character] if trie.folds else character)[0]
                if first in trie.root.next:
                    break
            else:
                inside = JOINS[character]
                continue
            found = _longest(anywhere if inside else everything, text, start, is_whole)
            if found.end is not None or found.grows:
                return found
            inside = JOINS[character]
        return None


def _add(node: _Node, letters: str, index: int, ends: bool) -> None:
    for letter in letters:
        node = node.next.setdefault(letter, _Node())
    node.ends = (*node.ends, (index, ends))


def _longest(tries: Sequence[_Trie], text: str, start: int, is_whole: bool) -> Found:
    end, best, grows = None, 0, False
    for trie in tries:
        for at, index in _walk(trie, text, start, is_whole):
            if index < 0:
                grows = True
            elif end is None or at > end or (at == end and index < best):
                end, best = at, index
    return Found(start, end, best, grows)


def _walk(trie: _Trie, text: str, start: int, is_whole: bool) -> list[tuple[int, int]]:
    """Where words end that begin at ``start``, with their rules; -1 for what may yet come."""
    found = []
    node, at, length = trie.root, start, len(text)
    while True:
        for index, ends in node.ends:
            if not ends or (is_whole if at == length else not JOINS[text[at]]):
                found.append((at, index))
            elif at == length:
                found.append((at, -1))
        if at == length:
            if node.next and not is_whole:
                found.append((at, -1))
            return found
        for letter in FOLDS[text[at]] if trie.folds else text[at]:
            following = node.next.get(letter)
            if following is None:
                return found
            node = following
        at += 1
