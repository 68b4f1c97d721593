"""The report as one HTML file that needs nothing else: no script, no font, no other address."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from bench.chaos import plots
from bench.chaos.definitions import DEFINITIONS
from bench.chaos.deliveries import GROUPS as BILLED
from bench.chaos.findings import ORIGINS, Finding, three
from bench.chaos.modes import ModeRow
from bench.chaos.modes import as_html as modes_as_html
from bench.chaos.page_style import STYLE

WIDE, NARROW = 860, 340
FAULTS = {
    "node_kill": "engine killed", "node_stop": "engine stopped", "node_freeze": "engine frozen",
    "node_reset": "connections reset", "node_slow": "engine slow", "gateway_kill": "gateway killed",
    "redis_restart": "Redis restarted", "postgres_restart": "PostgreSQL restarted",
}  # fmt: skip
_WITHOUT = {
    "all": "all", "hedge": "hedge, no fault of ours", "failover": "failover, no fault of ours",
    "takeover": "takeover", "migration": "drained",
}  # fmt: skip

_UNITS = re.compile(r"(?<=\d) (?=(%|ms|s)\b|%)")


def render(figures: Mapping[str, Any], findings: Sequence[Finding], rows: list[ModeRow]) -> str:
    """The whole page."""
    run = figures["run"]
    title = f"Chaos run {run['name']}"
    body = "".join(
        (
            _head(figures, findings),
            _goals(findings),
            _section("The run over time", _timeline(figures)),
            _section(
                "Seam gap",
                _curves("Seam gap", figures["seam_ms"], (300.0, "noticed")),
                DEFINITIONS["seam_gap"].text,
            ),
            _section(
                "Recovery",
                _curves("Recovery", figures["recovery_ms"], (120.0, "120 ms")),
                DEFINITIONS["recovery"].text,
            ),
            _section("Billed against received", _billing(figures), DEFINITIONS["billing"].text),
            _section(
                "Modes beside each other",
                _scrolled("Modes", modes_as_html(rows)) if rows else "<p>No streams.</p>",
                "In a run of several modes they share the engines, and with them GPU and KV-cache.",
            ),
            _section("All figures", _table(findings)),
            _section("What the words mean", _definitions()),
            _section("How it was run", _facts(run)),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def _head(figures: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    run, machine = figures["run"], figures["run"]["machine"]
    judged = [line for line in findings if line.met is not None]
    met = sum(line.met is True for line in judged)
    streams = sum(figures["streams"].values())
    faults = sum(figures["faults"].values())
    facts = (
        f"{streams:,} streams, {faults:,} faults in {run['seconds']:,.0f} s"
        f" · {run['cluster']} · seed {run['seed']} · {machine.get('date', 'no date')}"
        f" · commit {machine.get('commit', 'unknown')}"
    )
    verdict = f"{met} of {len(judged)} goals met" if judged else "no goal could be judged"
    state = "met" if judged and met == len(judged) else "missed" if judged else ""
    return f'<p class="lead {state}">{verdict}</p><p class="facts">{escape(facts)}</p>'


def _goals(findings: Sequence[Finding]) -> str:
    cards = []
    for line in findings:
        if line.met is None:
            continue
        state, word = ("met", "met") if line.met else ("missed", "missed")
        cards.append(
            f'<li class="{state}"><h3>{escape(line.what)}</h3>'
            f'<p class="value">{_tied(line.value)}</p>'
            f'<p class="goal"><span class="badge">{word}</span> goal: {_tied(line.goal)}</p></li>'
        )
    return f'<h2>Goals</h2><ul class="goals">{"".join(cards)}</ul>' if cards else ""


def _section(title: str, content: str, note: str = "") -> str:
    words = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{words}{content}</section>"


def _both(draw: Callable[[int], str]) -> str:
    """A plot for wide screens and one for narrow ones; a style sheet shows one of them."""
    return f'<div class="wide">{draw(WIDE)}</div><div class="narrow">{draw(NARROW)}</div>'


def _legend(names: Sequence[tuple[str, str]], *, curves: bool) -> str:
    items = []
    for number, (name, told) in enumerate(names):
        if not told:  # it keeps its colour, and is not shown
            continue
        colour, dashes = plots.style_of(number)
        mark = (
            plots.tag("path", d="M0 6H28", class_=f"curve {colour}", stroke_dasharray=dashes)
            if curves
            else plots.tag("circle", cx=14, cy=6, r=4, class_=f"point {colour}")
        )
        svg = f'<svg width="28" height="12" aria-hidden="true">{mark}</svg>'
        items.append(f"<li>{svg}<span>{escape(name)}: {_tied(told)}</span></li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _timeline(figures: Mapping[str, Any]) -> str:
    told = figures["timeline"]
    counts = figures["noticed"]["silences"]
    shown = {name: ORIGINS[name] for name in ORIGINS}
    legend = _legend(
        [(title, f"{counts[name]:,}" if name in counts else "") for name, title in shown.items()],
        curves=False,
    )
    kinds = dict(FAULTS) | {
        fault["kind"]: fault["kind"] for fault in told["faults"] if fault["kind"] not in FAULTS
    }
    return _both(lambda width: plots.timeline(width, told, kinds, shown)) + legend


def _curves(title: str, by_fault: Mapping[str, Any], limit: tuple[float, str]) -> str:
    # With one kind only, "all" is the same curve again.
    wanted = {kind: some for kind, some in by_fault.items() if kind != "all" or len(by_fault) != 2}
    if not wanted:
        return "<p>There was no seam.</p>"
    series = {_name(kind): some["curve"] for kind, some in wanted.items()}
    legend = _legend(
        [(_name(kind), f"p50, p99, longest {three(some)}") for kind, some in wanted.items()],
        curves=True,
    )
    return _both(lambda width: plots.curves(width, title, series, limit)) + legend


def _name(kind: str) -> str:
    return FAULTS.get(kind) or _WITHOUT.get(kind) or kind.replace("_", " ")


def _billing(figures: Mapping[str, Any]) -> str:
    rows = {
        title: [("below", billed["below"]), ("equal", billed["equal"]), ("above", billed["above"])]
        for name, title in BILLED.items()
        if (billed := figures["tokens"]["billing"][name])["streams"]
    }
    if not rows:
        return "<p>No stream with a settled session.</p>"
    return _both(lambda width: plots.shares(width, "Billed against received, by stream", rows))


def _scrolled(name: str, content: str) -> str:
    """Wide tables are scrolled by themselves, with the keyboard, too."""
    return f'<div class="scrolled" role="region" aria-label="{escape(name)}" tabindex="0">{content}</div>'


def _table(findings: Sequence[Finding]) -> str:
    words = {None: "", True: "met", False: "missed"}
    lines = []
    before = ""
    for line in findings:
        if line.key != before:
            before = line.key
            title = DEFINITIONS[line.key].title
            lines.append(
                f'<tr class="group"><th scope="rowgroup" colspan="3">'
                f'<a href="#{line.key}">{escape(title)}</a></th></tr>'
            )
        state = words[line.met]
        goal = f"{_tied(line.goal)} " if line.goal else ""
        badge = f'<span class="badge">{state}</span>' if state else ""
        lines.append(
            f'<tr class="{state}"><th scope="row">{escape(line.what)}</th>'
            f"<td>{_tied(line.value)}</td><td>{goal}{badge}</td></tr>"
        )
    head = '<tr><th scope="col">what</th><th scope="col">value</th><th scope="col">goal</th></tr>'
    return (
        '<table class="all"><caption>All figures</caption>'
        f"<thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _definitions() -> str:
    return (
        "<dl>"
        + "".join(
            f'<dt id="{key}">{escape(one.title)}</dt><dd>{escape(one.text)}</dd>'
            for key, one in DEFINITIONS.items()
        )
        + "</dl>"
    )


def _facts(run: Mapping[str, Any]) -> str:
    told = {"seed": run["seed"], "pace": f"{run['pace']:g} tokens/s", **run["machine"]}
    facts = "".join(
        f"<dt>{escape(str(name).replace('_', ' '))}</dt><dd>{escape(_plain(value))}</dd>"
        for name, value in told.items()
    )
    arguments = json.dumps(run["arguments"], indent=1, ensure_ascii=False, default=str)
    return (
        f'<dl class="machine">{facts}</dl>'
        f"<details><summary>All options</summary><pre>{escape(arguments)}</pre></details>"
    )


def _tied(value: str) -> str:
    """Escaped, and no number apart from its unit."""
    return _UNITS.sub("\u00a0", escape(value))


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
