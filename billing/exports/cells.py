"""How values are written into cells that a spreadsheet may read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from billing.core.chain import moment
from billing.core.money import plain
from billing.exports.columns import Kind
from streaming.core.spreadsheet import guarded

SPELLED: dict[Kind, Callable[[Any], str]] = {
    Kind.CODE: str,
    Kind.TEXT: guarded,
    Kind.INTEGER: str,
    Kind.DECIMAL: plain,
    Kind.TIME: moment,
}
"""A value as text, by its kind: numbers stay numbers, as they are ours."""
