"""What a probe found, as it is told to other processes and stored for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from streaming.engines.base import Capabilities, Figures, NodeReport
from streaming.fleet.nodes import Health

FIGURES = tuple(field.name for field in fields(Figures) if field.name != "asked_at")
ABILITIES = tuple(field.name for field in fields(Capabilities))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one probe. ``at``: loop time at which it began. ``report`` None: no answer.

    Loop times mean nothing elsewhere, so what leaves this process carries ages instead.
    """

    at: float
    health: Health
    reason: str = ""
    report: NodeReport | None = None

    def stored(self, now: float) -> dict[str, Any]:
        """As JSON values, for the bus and for the columns of the node table."""
        report = self.report
        return {
            "age": now - self.at,
            "health": self.health.value,
            "reason": self.reason[:300].replace("\x00", "\ufffd"),
            "models": None if report is None else list(report.models),
            "capabilities": None if report is None else _capabilities(report),
            "figures": None if report is None else _figures(report, self.at),
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any], now: float) -> Finding:
        """The finding behind what ``stored`` made, ``now`` being the time to which its age refers.

        Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else.
        """
        at, health = now - float(stored["age"]), Health(stored["health"])
        report = None
        if stored["models"] is not None and stored["capabilities"]:
            abilities = stored["capabilities"]
            contexts = abilities.get("contexts", {})
            report = NodeReport(
                {model: contexts.get(model) for model in stored["models"]},
                Capabilities(**{name: abilities[name] for name in ABILITIES if name in abilities}),
                # What is stored of a node that is down is what it said before.
                _read_figures(stored["figures"], at) if health is Health.UP else None,
                abilities.get("slots"),
            )
        return cls(at=at, health=health, reason=stored["reason"], report=report)


def _capabilities(report: NodeReport) -> dict[str, Any]:
    return {**asdict(report.can), "slots": report.slots, "contexts": report.models}


def _figures(report: NodeReport, at: float) -> dict[str, Any]:
    figures = report.figures
    if figures is None:
        return {}
    values = {name: getattr(figures, name) for name in FIGURES}
    return {"asked_after": figures.asked_at - at, **values}


def _read_figures(stored: Mapping[str, Any] | None, at: float) -> Figures | None:
    if not stored:
        return None
    return Figures(
        at + float(stored["asked_after"]), **{name: stored.get(name) for name in FIGURES}
    )
