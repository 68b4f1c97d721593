"""Text in cells that a spreadsheet may read."""

from __future__ import annotations

import re
from functools import lru_cache

# A cell that begins so is a formula to a spreadsheet; blanks and quotes before do not always help,
# and full-width signs count in some. The same after a separator: one whose separator is another
# than ours cuts cells there.
_FORMULA = re.compile(r"(?:^|(?<=[;,|\t\r\n]))(?=[\s\"'`]*[=+\-@＝＋－＠])")
_LEADING = re.compile(r"^[\t\r\n]")
# Nothing that anybody wants to see, and XML has no way to write most of them.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")


@lru_cache(maxsize=4096)  # the same few names, a million times
def guarded(text: str) -> str:
    """``text`` as something that no spreadsheet takes for a formula.

    An apostrophe goes before what would begin one (``=1`` becomes ``'=1``), and control characters
    become U+FFFD. Tabs and line breaks stay: they are part of what somebody wrote.
    """
    text = _CONTROL.sub("\ufffd", text)
    text = _FORMULA.sub("'", text)
    return f"'{text}" if _LEADING.match(text) else text
