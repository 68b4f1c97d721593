"""What has been told of a session's hits."""

from __future__ import annotations

from dataclasses import dataclass, field

from streaming.core.content_rules.rule import Action


@dataclass(slots=True)
class Told:
    """``events`` are in its time line; ``beyond`` are those that are only counted, by rule and action;
    ``audited`` are the rules of which the audit log knows."""

    events: int = 0
    beyond: dict[tuple[str, Action], int] = field(default_factory=dict)
    audited: set[tuple[str, Action]] = field(default_factory=set)
