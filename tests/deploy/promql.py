"""What an expression of PromQL speaks of, read well enough for ours."""

from __future__ import annotations

import re
from collections.abc import Iterator

_WORDS = frozenset(
    [
        "and",
        "or",
        "unless",
        "on",
        "ignoring",
        "group_left",
        "group_right",
        "by",
        "without",
        "bool",
        "offset",
        "atan2",
        "inf",
        "nan",
    ]
)
_LABEL_LISTS = re.compile(
    r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", re.IGNORECASE
)
_SELECTOR = re.compile(r"\b([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_NAME = re.compile(r"(?<![\w:.])([a-zA-Z_:][\w:]*)\b(?!\s*\()")
_SERIES = re.compile(r"_(bucket|sum|count)$")


def metrics_of(expression: str) -> set[str]:
    """The names of the metrics in it."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = _LABEL_LISTS.sub("", re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare))
    return {name for name in _NAME.findall(bare) if name.lower() not in _WORDS}


def selected_labels(expression: str) -> Iterator[tuple[str, str]]:
    """Metric and label, for each matcher."""
    for name, matchers in _SELECTOR.findall(expression):
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", matchers):
            yield name, label


def grouped_labels(expression: str) -> set[str]:
    """Those that sums are taken by, and that sides are matched on."""
    lists = _LABEL_LISTS.findall(expression)
    return {label.strip() for labels in lists for label in labels.split(",") if label.strip()}


def family(name: str) -> str:
    """The metric that a series of a histogram belongs to."""
    return _SERIES.sub("", name)
