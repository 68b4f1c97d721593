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


# What Unicode lets fonts draw as nothing (Default_Ignorable_Code_Point).
_IGNORABLE = frozenset(
    chr(code)
    for first, last in (
        (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5),
        (0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164),
        (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3),
        (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
    )
    for code in range(first, last + 1)
)  # fmt: skip
_MARKUP = frozenset("*_`~")


def is_ignorable(character: str) -> bool:
    """Whether nobody sees it: what Unicode calls ignorable, and control characters."""
    if character in _IGNORABLE:
        return True
    return unicodedata.category(character) == "Cc" and not character.isspace()


def is_unseen(text: str) -> bool:
    """Whether there is nothing to see of it."""
    return all(character.isspace() or is_ignorable(character) for character in text)


class _Joins(dict[str, bool]):
    """Whether a word goes on with this character. Remembered: it is asked for every character.

    The underscore ends words: it emphasises them, and joins them to names (``my_secret_key``).
    """

    def __missing__(self, character: str) -> bool:
        joins = (
            is_word_character(character)
            and character != "_"
            and not is_unspaced(character)
            and not is_ignorable(character)
        )
        self[character] = joins
        return joins


class _Skips(dict[str, bool]):
    """Whether it does not count inside a word: readers do not see it once Markdown is shown."""

    def __missing__(self, character: str) -> bool:
        skips = character in _MARKUP or is_ignorable(character)
        self[character] = skips
        return skips


class _Forms(dict[str, str]):
    """A character as it is compared: fullwidth, bold and other forms of a letter are that letter, and
    every white space is a space."""

    def __missing__(self, character: str) -> str:
        form = " " if character.isspace() else unicodedata.normalize("NFKC", character)
        self[character] = form
        return form


class _Folds(dict[str, str]):
    """A character's form as it is compared where case does not matter: ``ß`` is ``ss``."""

    def __missing__(self, character: str) -> str:
        folded = "".join(FORMS[one] for one in FORMS[character].casefold())
        self[character] = folded
        return folded


JOINS = _Joins({"": False})
SKIPS = _Skips()
FORMS = _Forms()
FOLDS = _Folds()
