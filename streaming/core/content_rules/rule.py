"""A content rule as the filter knows it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Action(enum.StrEnum):
    """What becomes of an answer in which the rule's match is found. The first is the most severe."""

    STOP = "stop"
    MASK = "mask"
    FLAG = "flag"


class RuleRefused(ValueError):
    """The rule cannot be applied to a stream; the message says why, for who wrote it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """``pattern`` is a word (or several, as they stand), or a regular expression if ``is_regex``.

    ``replacement`` is what the reader gets in place of what a mask finds.
    """

    name: str
    pattern: str
    action: Action
    is_regex: bool = False
    case_sensitive: bool = False
    replacement: str = "***"
