"""Plots as inline SVG: curves, the time line, bars. Text in, text out; every word is escaped.

A plot is drawn for a width in CSS pixels and never scaled, so that its words stay readable; a page
holds one for wide and one for narrow screens. Colours are the page's (``--s0`` … of ``page.STYLE``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

COLOURS = 8
DASHES = ("", "6 3", "2 3", "9 3 2 3")
"""With the colours, so that nobody needs those to tell curves apart."""
_names = itertools.count()
Scale = Callable[[float], float]


def tag(name: str, content: str = "", **attributes: Any) -> str:
    """``class_`` for ``class``, ``stroke_width`` for ``stroke-width``; numbers to a tenth."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{words}>{content}</{name}>"


def _plain(value: Any) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def words(x: float, y: float, text: str, **attributes: Any) -> str:
    return tag("text", escape(text), x=float(x), y=float(y), **attributes)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=kind)


def picture(width: int, height: int, title: str, description: str, content: str) -> str:
    """An ``<svg>`` with its text alternative."""
    name = f"plot{next(_names)}"
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"'
        f' aria-labelledby="{name}t {name}d"><title id="{name}t">{escape(title)}</title>'
        f'<desc id="{name}d">{escape(description)}</desc>{content}</svg>'
    )


def style_of(number: int) -> tuple[str, str | None]:
    """Class of the colour and dashes of the n-th series."""
    return f"s{number % COLOURS}", DASHES[number % len(DASHES)] or None


def curves(
    width: int,
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    limit: tuple[float, str] | None = None,
) -> str:
    """Shares over milliseconds on a logarithmic axis. ``limit``: a marked value and its name."""
    height, left, right, top, bottom = 260, 44, 14, 22, 40
    largest = max((points[-1][0] for points in series.values()), default=1.0)
    if limit is not None:
        largest = max(largest, limit[0])
    end = max(2, math.ceil(math.log10(max(largest, 1.0))))

    def x(value: float) -> float:
        share = math.log10(max(value, 1.0)) / end
        return left + (width - left - right) * min(1.0, share)

    def y(share: float) -> float:
        return top + (height - top - bottom) * (1 - share)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(line(left, y(share), width - right, y(share), "grid"))
        parts.append(words(left - 6, y(share) + 4, f"{share:.0%}", text_anchor="end"))
    for power in range(end + 1):
        at = x(10.0**power)
        parts.append(line(at, top, at, height - bottom, "grid"))
        anchor = "end" if power == end else "middle"
        parts.append(words(at, height - bottom + 16, _duration(10.0**power), text_anchor=anchor))
    parts.append(
        words((left + width - right) / 2, height - 4, "at most so long", text_anchor="middle")
    )
    if limit is not None:
        at = x(limit[0])
        parts.append(line(at, top - 4, at, height - bottom, "limit"))
        parts.append(words(at, top - 8, limit[1], text_anchor="middle", class_="strong"))
    for number, points in enumerate(series.values()):
        colour, dashes = style_of(number)
        path = _steps([(x(value), y(share)) for value, share in points], y(0.0))
        parts.append(
            tag("path", d=path, class_=f"curve {colour}", stroke_dasharray=dashes, fill="none")
        )
    told = "; ".join(
        f"{name}: half within {_duration(_at(points, 0.5))}, 99 % within {_duration(_at(points, 0.99))}"
        for name, points in series.items()
    )
    return picture(width, height, title, told or "nothing to draw", "".join(parts))


def _steps(points: Sequence[tuple[float, float]], ground: float) -> str:
    if not points:
        return ""
    path = f"M{points[0][0]:.1f} {ground:.1f}V{points[0][1]:.1f}"
    return path + "".join(f"H{x:.1f}V{y:.1f}" for x, y in points[1:])


def _at(points: Sequence[tuple[float, float]], share: float) -> float:
    return next((value for value, reached in points if reached >= share), points[-1][0])


def _duration(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return (
            f"{milliseconds / 1000:g} s"
            if milliseconds % 100 == 0
            else f"{milliseconds / 1000:.1f} s"
        )
    return f"{milliseconds:.0f} ms"


def timeline(
    width: int, told: Mapping[str, Any], kinds: Mapping[str, str], origins: Mapping[str, str]
) -> str:
    """Streams in flight, noticed silences as points, and a lane of bars for each kind of fault.

    ``kinds`` and ``origins``: names in the order of the lanes and colours.
    """
    seconds = max(told["seconds"], 1e-9)
    left, right, top, flight, gap, silent, lane = 44, 14, 18, 110, 30, 84, 28
    lanes = [kind for kind in kinds if any(fault["kind"] == kind for fault in told["faults"])]
    begin = top + flight + gap + silent + 34
    height = begin + lane * len(lanes) + 26

    def x(at: float) -> float:
        return left + (width - left - right) * min(1.0, max(0.0, at / seconds))

    parts = [words(left, top - 6, "streams in flight", class_="strong")]
    parts += _area(told["in_flight"], x, seconds, top, flight, left, width - right)
    silences_top = top + flight + gap
    parts.append(
        words(left, silences_top - 8, "noticed silences, beyond the pace", class_="strong")
    )
    parts += _points(told["silences"], x, silences_top, silent, left, width - right, list(origins))
    parts.append(words(left, begin - 8, "faults", class_="strong"))
    for number, kind in enumerate(lanes):
        y = begin + number * lane
        parts.append(words(left, y + 10, kinds[kind], class_="lane"))
        parts.append(line(left, y + 18, width - right, y + 18, "grid"))
        for fault in told["faults"]:
            if fault["kind"] == kind:
                start, end = x(fault["at"]), x(fault["until"])
                parts.append(_fault(start, max(3.0, end - start), y + 14, 8, fault))
    for share in (0.0, 0.5, 1.0):
        anchor = ("start", "middle", "end")[int(share * 2)]
        parts.append(
            words(x(share * seconds), height - 8, _clock(share * seconds), text_anchor=anchor)
        )
    described = (
        f"{len(told['faults'])} faults in {_clock(seconds)}, at most {max(told['in_flight'], default=0)}"
        f" streams in flight, {len(told['silences'])} noticed silences"
    )
    return picture(width, height, "The run over time", described, "".join(parts))


def _area(
    levels: Sequence[int], x: Scale, seconds: float, top: float, height: float, left: float,
    right: float,
) -> list[str]:  # fmt: skip
    most = max([1, *levels])
    ground = top + height
    parts = [line(left, ground, right, ground, "grid"), line(left, top, right, top, "grid")]
    parts.append(words(left - 6, top + 4, f"{most:,}", text_anchor="end"))
    parts.append(words(left - 6, ground + 4, "0", text_anchor="end"))
    if levels:
        path = f"M{left} {ground:.1f}"
        for number, level in enumerate(levels):
            path += f"L{x(number / len(levels) * seconds):.1f} {ground - height * level / most:.1f}"
        path += f"L{right:.1f} {ground:.1f}Z"
        parts.append(tag("path", d=path, class_="area"))
    return parts


def _points(
    silences: Sequence[Mapping[str, Any]], x: Scale, top: float, height: float, left: float,
    right: float, origins: Sequence[str],
) -> list[str]:  # fmt: skip
    longest = max((silence["beyond"] for silence in silences), default=1.0)
    low, high = math.log10(0.3), max(math.log10(0.3) + 0.5, math.log10(longest) + 0.05)

    def y(beyond: float) -> float:
        return top + height * (1 - (math.log10(max(beyond, 0.3)) - low) / (high - low))

    parts = []
    for value in (0.3, 1.0, 3.0, 10.0, 30.0):
        if math.log10(value) <= high:
            parts.append(line(left, y(value), right, y(value), "grid"))
            name = f"{value:g} s"
            parts.append(words(left - 6, y(value) + 4, name, text_anchor="end"))
    for silence in silences:
        colour = f"s{origins.index(silence['origin']) % COLOURS}"
        parts.append(
            tag("circle", tag("title", escape(f"{silence['beyond']:.2f} s: {silence['origin']}")),
                cx=float(x(silence["at"])), cy=float(y(silence["beyond"])), r=3.5,
                class_=f"point {colour}")
        )  # fmt: skip
    return parts


def _fault(x: float, width: float, y: float, height: float, fault: Mapping[str, Any]) -> str:
    told = (
        f"{fault['kind'].replace('_', ' ')} of {fault['target']} at {_clock(fault['at'])},"
        f" for {fault['until'] - fault['at']:.1f} s, {fault['streams']} streams in flight"
    )
    return tag("rect", tag("title", escape(told)), x=float(x), y=float(y), width=float(width),
               height=float(height), rx=2, class_="bar fault")  # fmt: skip


def _clock(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def shares(width: int, title: str, rows: Mapping[str, Sequence[tuple[str, int]]]) -> str:
    """One bar of 100 % for each row, of (class, count) from left to right."""
    row, left, right = 46, 2, 2
    height = row * len(rows) + 6
    parts = []
    told = []
    for number, (name, pieces) in enumerate(rows.items()):
        total = sum(count for _, count in pieces)
        y = number * row
        at = float(left)
        counts = ", ".join(f"{count:,} {kind}" for kind, count in pieces)
        told.append(f"{name}: {counts}")
        parts.append(words(left, y + 14, name, class_="strong"))
        parts.append(words(width - right, y + 14, counts, text_anchor="end"))
        for kind, count in pieces:
            if not count:
                continue
            piece = max(3.0, (width - left - right) * count / total)
            piece = min(piece, width - right - at)
            parts.append(
                tag("rect", tag("title", escape(f"{count:,} {kind}")), x=at, y=float(y + 20),
                    width=max(0.0, piece), height=16, rx=2, class_=f"bar {kind}")
            )  # fmt: skip
            at += piece
    return picture(width, height, title, "; ".join(told) or "nothing to draw", "".join(parts))
