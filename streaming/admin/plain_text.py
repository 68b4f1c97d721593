"""Text that strangers wrote, shown so that it can do nothing: neither as markup nor by its characters.

What controls a terminal or the direction of writing, or is not seen at all, is shown by its name:
``ESC``, ``NUL``, ``U+202E``.
"""

from __future__ import annotations

import re

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

# Joiners (U+200C, U+200D) stay: Persian and emoji are spelled with them.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
_ASCII = [
    "NUL",
    "SOH",
    "STX",
    "ETX",
    "EOT",
    "ENQ",
    "ACK",
    "BEL",
    "BS",
    "TAB",
    "LF",
    "VT",
    "FF",
    "CR",
    "SO",
    "SI",
    "DLE",
    "DC1",
    "DC2",
    "DC3",
    "DC4",
    "NAK",
    "SYN",
    "ETB",
    "CAN",
    "EM",
    "SUB",
    "ESC",
    "FS",
    "GS",
    "RS",
    "US",
]


def named(text: object) -> str:
    """``text`` with its controls spelled out, and not yet escaped: for SVG, titles and attributes."""
    return _CONTROLS.sub(lambda found: _names(found.group()), _of_one_kind(text))


def visible(text: object) -> SafeString:
    """``text`` as HTML: escaped, controls marked, its direction kept to itself."""
    # What escaping passes through stands for the marks meanwhile; no text has it any more by then.
    marked = _CONTROLS.sub(lambda found: f"\x02{_names(found.group())}\x03", _of_one_kind(text))
    shown = escape(marked).replace("\x02", '<span class="unbroken-control">')
    return mark_safe(f"<bdi>{shown.replace(chr(3), '</span>')}</bdi>")


def _of_one_kind(text: object) -> str:
    return str(text).replace("\r\n", "\n")


def _names(controls: str) -> str:
    return " ".join(_name(ord(control)) for control in controls)


def _name(code: int) -> str:
    if code < len(_ASCII):
        return _ASCII[code]
    return "DEL" if code == 0x7F else f"U+{code:04X}"
