"""Finds words: as whole words, however they are written, in text that is still growing."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from streaming.core.content_rules.letters import FOLDS, FORMS, JOINS, SKIPS, is_ignorable
from streaming.core.content_rules.rule import Rule, RuleRefused


class Found(NamedTuple):
    """What begins at ``start``: the longest match so far, by this rule (end None: none yet), and
    whether more text could still make one, or a longer one."""

    start: int
    end: int | None
    rule: int
    grows: bool


class _Node:
    __slots__ = ("ends", "is_space", "next")

    def __init__(self, letter: str = "") -> None:
        self.next: dict[str, _Node] = {}
        self.is_space = letter == " "
        self.ends: tuple[tuple[int, bool], ...] = ()
        """The rules whose word this is, and whether it has to end here."""


class _Trie(NamedTuple):
    root: _Node
    forms: Mapping[str, str]
    """Its letters are these of a text's characters."""
    begins: bool
    """Whether its words have to begin where a word begins."""


def spelling(rule: Rule) -> str:
    """The word of a rule, without what nobody sees. Raises ``RuleRefused``."""
    seen = "".join(letter for letter in rule.pattern if not is_ignorable(letter))
    word = " ".join(seen.split())
    if not word:
        raise RuleRefused("A word needs at least one character that is seen.")
    return word


class Words:
    """The words of some rules. ``rules`` has them by their index, the more important one first.

    A word's edge has to be the edge of a word in the text where it is a letter, digit or mark of a
    script that shows where words end; other edges match anywhere. Inside a word what readers do not
    see is passed over. A match has ``longest`` characters at most, with all that.
    """

    def __init__(self, rules: Sequence[tuple[int, Rule]], longest: int) -> None:
        self._longest = longest
        tries: dict[tuple[bool, bool], _Trie] = {}
        for index, rule in rules:
            word = spelling(rule)
            for spelt in {word, *(unicodedata.normalize(form, word) for form in ("NFC", "NFD"))}:
                forms = FORMS if rule.case_sensitive else FOLDS
                letters = "".join(forms[letter] for letter in spelt).strip()
                begins, ends = JOINS[letters[:1]], JOINS[letters[-1:]]
                trie = tries.setdefault(
                    (rule.case_sensitive, begins), _Trie(_Node(), forms, begins)
                )
                _add(trie.root, letters, index, ends)
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
                if trie.forms[character][:1] in trie.root.next:
                    break
            else:
                inside = JOINS[character]
                continue
            found = _longest(
                anywhere if inside else everything, text, start, is_whole, self._longest
            )
            if found.end is not None or found.grows:
                return found
            inside = JOINS[character]
        return None


def _add(node: _Node, letters: str, index: int, ends: bool) -> None:
    for letter in letters:
        node = node.next.setdefault(letter, _Node(letter))
    node.ends = (*node.ends, (index, ends))


def _longest(tries: Sequence[_Trie], text: str, start: int, is_whole: bool, longest: int) -> Found:
    end, best, grows = None, 0, False
    for trie in tries:
        for at, index in _walk(trie, text, start, is_whole, longest):
            if index < 0:
                grows = True
            elif end is None or at > end or (at == end and index < best):
                end, best = at, index
    return Found(start, end, best, grows)


def _walk(
    trie: _Trie, text: str, start: int, is_whole: bool, longest: int
) -> list[tuple[int, int]]:
    """Where words end that begin at ``start``, with their rules; -1 for what may yet come."""
    found = []
    length, last = len(text), start + longest
    # Those just reached, and those beyond which something was passed over: a word ends with a letter.
    reached: list[_Node] = [trie.root]
    passed: list[_Node] = []
    at = start
    while True:
        for node in reached:
            for index, ends in node.ends:
                if not ends or (is_whole if at == length else not JOINS[text[at]]):
                    found.append((at, index))
                elif at == length:
                    found.append((at, -1))
        if at == last:
            return found
        waiting = [node for node in dict.fromkeys((*reached, *passed)) if node.next]
        if at == length:
            if waiting and not is_whole:
                found.append((at, -1))
            return found
        character = text[at]
        letters, skips = trie.forms[character], SKIPS[character]
        is_space = letters == " "
        reached, passed = [], []
        for node in waiting:
            if at > start and (skips or (is_space and node.is_space)):
                passed.append(node)
            following: _Node | None = node
            for letter in letters:
                following = following.next.get(letter) if following is not None else None
            if following is not None and letters:
                reached.append(following)
        if not reached and not passed:
            return found
        at += 1
