"""The causes of interruptions: a filter, and the evidence in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from streaming.core.attribution import Blame

_PROBES = {
    "up": "a probe found it working",
    "refused": "a probe was refused",
    "unreachable": "a probe got no connection",
    "no_answer": "a probe got no answer",
    "error": "a probe was answered with an error",
}


class ByCause(admin.SimpleListFilter):
    """All causes there can be: asking the table for those it has would read all of it."""

    title = "cause"
    parameter_name = "cause"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(blame.value, blame.value.replace("_", " ")) for blame in Blame]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(cause=self.value()) if self.value() else queryset


# In the order of telling. What is not here is shown as it is stored.
_FACTS: dict[str, Callable[[Any], str]] = {
    "seen": lambda value: f"seen: {str(value).replace('_', ' ')}",
    "error": lambda value: f"error: {value}",
    "said": lambda value: f"it said “{value}”",
    "status": lambda value: f"HTTP {value}",
    "errno": str,
    "silence": lambda value: f"{value:.1f} s without data",
    "unanswered": lambda value: f"{value} signs of life not answered by its host",
    "siblings_failed": lambda value: f"{value} more of its streams failed in that moment",
    "siblings_alive": lambda value: (
        f"{value} of its streams lived on" if value else "none lived on"
    ),
    "nodes_failed": lambda value: f"so did streams on {value} other nodes",
    "probe": lambda value: _PROBES.get(value, f"probe: {value}"),
    "probe_after": lambda value: f"judged {value:.1f} s later",
    "restarted": lambda _: "its counters began anew",
    "progressed": lambda value: "it worked on" if value else "it did not work on",
    "waiting": lambda value: f"{value} requests in its queue",
    "xids": lambda value: f"Xid {', '.join(map(str, value))}",
    "ecc_errors": lambda value: f"{value} uncorrectable memory errors",
    "memory_used": lambda value: f"{value:.0%} of its GPU memory in use",
    "oom_killed": lambda _: "its container was OOMKilled",
    "exit_code": lambda value: f"exit code {value}",
    "pod_restarts": lambda value: f"{value} restarts of its pod",
    "pod_gone": lambda _: "its pod is gone",
}


def in_words(evidence: Mapping[str, Any]) -> str:
    """One line: why it was judged so, and on what.

    For example "Its host answers, and nobody listens at its port any more. (seen: connection reset;
    4 more of its streams failed in that moment; none lived on; a probe was refused)". Rows of other
    versions, with other fields and values, are shown as far as they can be.
    """
    facts = []
    for name in [*_FACTS, *sorted(evidence.keys() - _FACTS.keys() - {"because"})]:
        if name in evidence:
            facts.append(_fact(name, evidence[name]))
    because = str(evidence.get("because", ""))
    told = f"({'; '.join(facts)})" if facts else ""
    return f"{because} {told}".strip() or "-"


def _fact(name: str, value: Any) -> str:
    try:
        return _FACTS[name](value)
    except (KeyError, ValueError, TypeError):
        return f"{name.replace('_', ' ')}: {value}"
