"""What belongs to a word, in any script."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right

# Scripts written without spaces, or whose particles are joined on: between two of their characters,
# and between them and another script's, nobody can see where a word ends.
_UNSPACED = (
    (0x0E00, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1100, 0x11FF), (0x1780, 0x17FF),
    (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x30FF), (0x3100, 0x312F), (0x3130, 0x318F),
    (0x31A0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA960, 0xA97F), (0xAC00, 0xD7FF),
    (0xF900, 0xFAFF), (0xFF66, 0xFFDC), (0x1B000, 0x1B16F), (0x20000, 0x3FFFF),
)  # fmt: skip
_STARTS = [first for first, _ in _UNSPACED]


def is_word_character(character: str) -> bool:
    """Letters, marks and digits of all scripts, and the underscore: ``\\w`` of the rules' regexes."""
    return character == "_" or unicodedata.category(character)[0] in "LMN"


def is_unspaced(character: str) -> bool:
    """Whether its script does not show where words end."""
    code = ord(character)
    at = bisect_right(_STARTS, code) - 1
    return at >= 0 and code <= _UNSPACED[at][1]


class _Joins(dict[str, bool]):
    """Whether a word goes on with this character. Remembered: it is asked for every character."""

    def __missing__(self, character: str) -> bool:
        joins = is_word_character(character) and not is_unspaced(character)
        self[character] = joins
        return joins


class _Folds(dict[str, str]):
    """A character as it is compared where case does not matter: ``ß`` is ``ss``."""

    def __missing__(self, character: str) -> str:
        folded = character.casefold()
        self[character] = folded
        return folded


JOINS = _Joins({"": False})
FOLDS = _Folds()
