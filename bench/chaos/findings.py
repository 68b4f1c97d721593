"""The figures as lines to read: what, its value, its goal and whether it was met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bench.chaos.deliveries import GROUPS as BILLED

NOT_TOLD = "not told"


class Finding(NamedTuple):
    """``key``: of its definition. ``met`` None: there is no goal, or nothing to judge it by."""

    key: str
    what: str
    value: str
    goal: str = ""
    met: bool | None = None


def findings(figures: Mapping[str, Any]) -> list[Finding]:
    return [
        *_streams(figures),
        *_interruptions(figures["interruptions"]),
        *_noticed(figures),
        *_times(figures),
        *_tokens(figures["tokens"]),
        *_reclaim(figures["reclaim"], is_shared=set(figures["streams"]) != {"unbroken"}),
        *_engines(figures["engines"]),
    ]


def _streams(figures: Mapping[str, Any]) -> list[Finding]:
    modes = ", ".join(f"{count:,} {mode}" for mode, count in figures["streams"].items()) or "none"
    faults = ", ".join(
        f"{count:,} {kind.replace('_', ' ')}" for kind, count in sorted(figures["faults"].items())
    )
    lines = [
        Finding("streams", "streams", modes),
        Finding("streams", "faults", faults or "none"),
        Finding("streams", "readers who left for good", f"{figures['left']:,}"),
    ]
    if figures["diverged"]:
        lines.append(
            Finding("interrupted", "whole, but worded otherwise behind a seam than without one",
                    f"{figures['diverged']:,}")
        )  # fmt: skip
    wrong = figures["wrong_prefixes"]
    lines.append(
        Finding("interrupted", "continuations that an engine would never have said", f"{wrong:,}",
                "0", wrong == 0)
    )  # fmt: skip
    return lines


def _interruptions(groups: Mapping[str, Any]) -> list[Finding]:
    lines = []
    for name, group in groups.items():
        value = (
            f"{group['hits']:,} of {group['trials']:,} ({percent(group['share'])}),"
            f" at most {percent(group['upper'])} at 95 %"
        )
        has_goal = name in ("plain_engines", "returning")
        lines.append(
            Finding(
                "bound", f"interrupted: {group['title']}", value, "0" if has_goal else "",
                group["hits"] == 0 if has_goal else None,
            )
        )  # fmt: skip
    return lines


def _noticed(figures: Mapping[str, Any]) -> list[Finding]:
    noticed, failovers = figures["noticed"], figures["failovers"]
    by_origin = ", ".join(
        f"{count:,} {ORIGINS[origin]}" for origin, count in noticed["silences"].items()
    )
    lines = [
        Finding("noticed", "streams with a silence over 300 ms beyond the pace",
                f"{noticed['streams']:,}"),
        Finding("noticed", "these silences, by what happened in them", by_origin or "none"),
    ]  # fmt: skip
    judged = failovers["noticed"].get("failover")
    if judged is not None:
        unnoticed = 1 - judged["share"]
        lines.append(
            Finding(
                "unnoticed", "failovers that no reader noticed",
                f"{judged['trials'] - judged['hits']:,} of {judged['trials']:,} ({percent(unnoticed)},"
                f" at least {percent(1 - judged['upper'])} at 95 %)",
                "≥ 99.9 %", unnoticed >= 0.999,
            )
        )  # fmt: skip
        if judged["hits"]:
            behind = (
                f"{count:,} {BEHIND[what]}" for what, count in failovers["behind_noticed"].items()
            )
            lines.append(
                Finding("unnoticed", "what lay behind the noticed ones", ", ".join(behind))
            )
            lines.append(
                Finding("unnoticed", "noticed ones in whose silence untouched streams were silent, too",
                        f"{failovers['noticed_with_others']:,} of {judged['hits']:,}")
            )  # fmt: skip
        grades = ", ".join(f"{count:,} {grade}" for grade, count in failovers["grades"].items())
        lines.append(Finding("unnoticed", "how these failovers were joined on", grades))
    for group, title in (("takeover", "takeovers from dead gateways"), ("migration", "drained")):
        if group in failovers["noticed"]:
            of = failovers["noticed"][group]
            lines.append(
                Finding("unnoticed", f"{title}: unnoticed",
                        f"{of['trials'] - of['hits']:,} of {of['trials']:,}")
            )  # fmt: skip
    before = failovers["before_first_ms"]
    if before["count"]:
        lines.append(
            Finding("unnoticed", "failovers before the first token: its delay p50, max",
                    f"{before['count']:,}: {ms(before['p50'])}, {ms(before['max'])}")
        )  # fmt: skip
    if failovers["away"]:
        lines.append(
            Finding("unnoticed", "failovers while the reader's own connection was cut",
                    f"{failovers['away']:,}")
        )  # fmt: skip
    return lines


def _times(figures: Mapping[str, Any]) -> list[Finding]:
    lines = []
    for kind, spread in figures["seam_ms"].items():
        lines.append(
            Finding("seam_gap", f"seam gap, {_fault(kind)}: p50, p99, longest", three(spread))
        )
    for kind, spread in figures["detection_ms"].items():
        lines.append(
            Finding("detection", f"detection, {_fault(kind)}: p50, p99, longest", three(spread))
        )
    for kind, spread in figures["recovery_ms"].items():
        lines.append(
            Finding("recovery", f"recovery, {_fault(kind)}: mean, p50, p99",
                    f"{ms(spread['mean'])}, {ms(spread['p50'])}, {ms(spread['p99'])}")
        )  # fmt: skip
    crashes = figures["recovery_crashes_ms"]
    if crashes["count"]:
        lines.append(
            Finding("recovery", "recovery from crashes: mean",
                    f"{ms(crashes['mean'])} ({crashes['count']:,})", "≤ 120 ms",
                    crashes["mean"] <= 120)
        )  # fmt: skip
    return lines


def _tokens(tokens: Mapping[str, Any]) -> list[Finding]:
    lines = []
    for name, title in BILLED.items():
        billed = tokens["billing"][name]
        if not billed["streams"]:
            continue
        goal, met = "", None
        if name == "acking":
            goal, met = "100 %", billed["share_equal"] == 1.0
        elif name != "left":
            goal, met = "none above", billed["above"] == 0
        lines.append(
            Finding(
                "billing", f"billed exactly what they got: {title}",
                f"{billed['equal']:,} of {billed['streams']:,} ({percent(billed['share_equal'])});"
                f" at most {billed['most_above']:,} above, {billed['most_below']:,} below",
                goal, met,
            )
        )  # fmt: skip
    beyond, without = tokens["beyond_evidence"], tokens["without_line"]
    if any(billed["streams"] for billed in tokens["billing"].values()):
        lines += [
            Finding("billing", "sessions billed beyond the evidence of delivery", f"{beyond:,}",
                    "0", beyond == 0),
            Finding("billing", "settlements without their line in the ledger", f"{without:,}", "0",
                    without == 0),
            Finding("billing", "sessions not settled; not in the database",
                    f"{tokens['unsettled']:,}; {tokens['missing']:,}"),
        ]  # fmt: skip
    own = tokens["modes"].get("unbroken")
    if own is not None and own["delivery_ratio"] is not None:
        ratio = own["delivery_ratio"]
        lines += [
            Finding("delivery", "effective delivery ratio", percent(ratio), "> 98 %", ratio > 0.98),
            Finding("whole_ratio", "useful tokens", percent(own["whole_ratio"])),
            Finding("cost_index", "cost index, against unstreamed answers when nothing breaks",
                    number(own["per_delivered"])),
        ]  # fmt: skip
        unstreamed = tokens["modes"].get("unstreamed")
        if unstreamed is not None and unstreamed["per_delivered"]:
            index = own["per_delivered"] / unstreamed["per_delivered"]
            lines.append(
                Finding("cost_index", "cost index, against unstreamed answers under these faults",
                        number(index))
            )  # fmt: skip
    waste = ", ".join(
        f"{some['tokens']:,} {some['kind']} ({some['cause'] or 'no cause'})"
        for some in tokens["waste"]
    )
    if tokens["generated"]:
        lines.append(Finding("waste", "waste, in tokens", waste or "none"))
    strangers = tokens["strangers"]
    if strangers["sessions"]:
        lines.append(
            Finding("delivery", "sessions that no reader has heard of",
                    f"{strangers['sessions']:,}, of {strangers['generated']:,} tokens")
        )  # fmt: skip
    return lines


def _reclaim(reclaim: Mapping[str, Any], *, is_shared: bool) -> list[Finding]:
    """``is_shared``: others ask the engines, too, whose figures prove little then."""
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in reclaim["outcomes"].items())
    if not outcomes:
        return []
    lines = [Finding("reclaim", "what became of requests that were given up", outcomes)]
    spread = reclaim["ms"]
    if spread["count"]:
        lines.append(
            Finding("reclaim", "reclaim latency: p50, p99, longest", three(spread),
                    "" if is_shared else "< 5 s", None if is_shared else spread["max"] < 5000)
        )  # fmt: skip
    overdue = reclaim["outcomes"].get("overdue", 0)
    lines.append(Finding("reclaim", "never seen to be gone", f"{overdue:,}", "0", overdue == 0))
    return lines


def _engines(engines: Mapping[str, Any]) -> list[Finding]:
    lines = []
    for name, told in engines.items():
        if told is None:
            lines.append(Finding("kv", f"engine {name}", NOT_TOLD))
            continue
        kv = told["kv_tokens_per_request"]
        lines.append(
            Finding(
                "kv", f"engine {name}: tokens, running at most, KV of a request, GPU",
                f"{whole(told['generated'])}, {whole(told['running_max'])},"
                f" {NOT_TOLD if kv is None else f'{kv:,.0f} tokens'}, {percent(told['gpu'])}",
            )
        )  # fmt: skip
    return lines


ORIGINS = {
    "cut": "own connection cut",
    "gateway": "gateway died",
    "takeover": "gateway died, taken over",
    "postgres": "PostgreSQL away",
    "failover": "engine failed",
    "slow": "engine's fault waited out",
    "redis": "Redis away",
    "other": "none of these",
}

BEHIND = {
    "postgres": "PostgreSQL was away",
    "onto": "went on to a node with a fault of its own",
    "gateway": "a gateway was away",
    "nothing": "nothing else",
}


def _fault(kind: str) -> str:
    names = {"hedge": "hedged without a fault of ours", "failover": "without a fault of ours",
             "takeover": "taken over without a fault of ours"}  # fmt: skip
    return names.get(kind, kind.replace("_", " "))


def percent(share: float | None) -> str:
    """Enough digits to tell 99.9 % from 99.99 %, and 0.001 % from nothing."""
    if share is None:
        return NOT_TOLD
    if share in (0.0, 1.0):
        return f"{share:.0%}".replace("%", " %")
    distance = min(share, 1 - share)
    digits = 1 if distance >= 0.05 else 2 if distance >= 0.005 else 3 if distance >= 0.0005 else 5
    return f"{share * 100:.{digits}f} %"


def ms(value: float | None) -> str:
    if value is None:
        return NOT_TOLD
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{value:,.1f} ms" if value < 10 else f"{value:,.0f} ms"


def three(spread: Mapping[str, Any]) -> str:
    """p50, p99 and the longest, with how many there were."""
    return f"{ms(spread['p50'])}, {ms(spread['p99'])}, {ms(spread['max'])} ({spread['count']:,})"


def number(value: float | None) -> str:
    return NOT_TOLD if value is None else f"{value:.3f}"


def whole(value: float | None) -> str:
    return NOT_TOLD if value is None else f"{value:,.0f}"
