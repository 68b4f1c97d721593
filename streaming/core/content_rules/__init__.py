"""Content rules on a stream of tokens. Pure: no Django, no I/O."""

from streaming.core.content_rules.content_filter import ContentFilter, RuleSet, filtered
from streaming.core.content_rules.letters import is_unseen
from streaming.core.content_rules.rule import Action, Rule, RuleRefused
from streaming.core.content_rules.stage import Hit
from streaming.core.content_rules.told import Told

__all__ = [
    "Action",
    "ContentFilter",
    "Hit",
    "Rule",
    "RuleRefused",
    "RuleSet",
    "Told",
    "filtered",
    "is_unseen",
]
