"""The picture of one session on a time line, as SVG. Pure: no queries, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from streaming.admin.picture import Bar, Picture, signs_of_life
from streaming.admin.plain_text import named
from streaming.admin.timescale import Scale
from streaming.admin.words import ENDS, GRADES, KINDS, LEAVINGS, sentence, word

WIDTH = 1000.0
LEFT, RIGHT = 124.0, 972.0
MOST_LANES = 12
NAME_LENGTH = 17
CHARACTER = 6.2
"""How wide one is about, in the units of the drawing."""
BAR, LANE, CHART, NARROW = 18.0, 28.0, 64.0, 22.0
CLOSE = 13.0
"""Signs nearer than this to each other are drawn as one."""
OTHERS = "other nodes"

_SIGNS = {
    "suspended": "‖",
    "taken_over": "⇄",
    "moving": "→",
    "hedged": "∥",
    "engine_silent": "…",
    "answer_long": "!",
    "completed": "■",
    "stopped": "■",
    "cancelled": "■",
    "failed": "✕",
    "abandoned": "✕",
}

LEGEND = (
    ("try", "an attempt on its engine, with the tokens it added"),
    ("wait", "the engine had the request, and no token had come yet"),
    ("end", "where an attempt failed"),
    ("seam", "where the answer was joined on"),
    ("gap", "no tokens came: how long, beyond the usual pace where that is known"),
    ("here", "a reader was connected"),
    ("away", "no reader"),
    ("ping", "signs of life due to a silent reader; computed from the pace set now, not stored"),
    ("tokens", "tokens stored for the reader"),
    ("delivered", "up to where delivery is proven"),
)
"""Class of the sample, and what it stands for."""


def draw(picture: Picture, *, title: str, description: str) -> SafeString:
    """The SVG. Its texts are escaped, and its look is ``desk/session.css``."""
    return mark_safe(_Drawing(picture).svg(title, description))


class _Drawing:
    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        moments = [picture.start, picture.end]
        for bar in picture.bars:
            moments += [at for at in (bar.start, bar.first, bar.end) if at is not None]
        moments += [at for gap in picture.gaps for at in (gap.start, gap.end)]
        moments += [at for one in picture.visits + picture.absences for at in (one.start, one.end)]
        moments += [e.at for e in picture.moments if e.kind in ("suspended", "taken_over")]
        self.scale = Scale(moments, picture.quiet, LEFT, RIGHT)
        self.parts: list[str] = []
        self.y = 0.0

    def svg(self, title: str, description: str) -> str:
        self._gap_labels()
        top = self.y
        lanes = self._engines()
        behind = len(self.parts)
        self._joins(lanes)
        self._reader()
        self._pings()
        self._tokens()
        self._events()
        bottom = self.y
        gaps = [self._gap_band(top, bottom)]
        self.parts[behind:behind] = gaps
        self._axis(top, bottom)
        height = self.y + 6
        return (
            f'<svg class="unbroken-timeline" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img"'
            ' aria-labelledby="timeline-title timeline-description" xmlns="http://www.w3.org/2000/svg">'
            f'<title id="timeline-title">{_text(title)}</title>'
            f'<desc id="timeline-description">{_text(description)}</desc>'
            f"{''.join(self.parts)}</svg>"
        )

    # The lanes, from top to bottom

    def _gap_labels(self) -> None:
        """Above all, in as many rows as it takes that none covers another."""
        ends: list[float] = []
        for gap in self.picture.gaps:
            words = gap.words
            half = len(words) * CHARACTER / 2 + 3
            middle = (self.scale.x(gap.start) + self.scale.x(gap.end)) / 2
            middle = min(max(middle, LEFT + half), WIDTH - half)
            row = next((n for n, end in enumerate(ends) if end <= middle - half), len(ends))
            if row > 3:  # the table has it
                continue
            ends[row : row + 1] = [middle + half]
            self._word(middle, 13 + row * 15, words, "gap-label", anchor="middle")
        self.y = 6 + 15 * len(ends)

    def _gap_band(self, top: float, bottom: float) -> str:
        bands = []
        for gap in self.picture.gaps:
            x1, x2 = self.scale.x(gap.start), self.scale.x(gap.end)
            words = f"No tokens after token {gap.interruption.seq}: {gap.words}"
            bands.append(_rect("gap", x1, top, max(x2 - x1, 1.5), bottom - top, words))
        return "".join(bands)

    def _engines(self) -> dict[str, float]:
        """A lane for each node in the order in which they were tried; where it is."""
        names = list(dict.fromkeys(bar.attempt.node for bar in self.picture.bars))
        shown = names if len(names) <= MOST_LANES else names[: MOST_LANES - 1]
        lanes: dict[str, float] = {}
        for name in shown:
            lanes[name] = self._lane(name or "unknown node", LANE, name)
        if len(names) > len(shown):
            rest = self._lane(OTHERS, LANE, ", ".join(names[len(shown) :]))
            lanes.update(dict.fromkeys(names[len(shown) :], rest))
        if not names:
            self._lane("No engine", LANE, "It was asked of no engine.")
        for bar in self.picture.bars:
            self._bar(bar, lanes[bar.attempt.node])
        return lanes

    def _bar(self, bar: Bar, middle: float) -> None:
        one, y = bar.attempt, middle - BAR / 2
        x1, x2 = self.scale.x(bar.start), self.scale.x(bar.end)
        grade = f", {word(GRADES, one.grade)}" if one.grade else ""
        tokens = (
            f"tokens {bar.tokens}"
            if bar.tokens
            else "no tokens of its own yet"
            if bar.runs
            else "no tokens"
        )
        about = (
            f"Attempt {one.number} on {one.node} ({word(KINDS, one.kind)}{grade}): {tokens};"
            f" {word(ENDS, one.end_reason)}"
        )
        state = "runs" if bar.runs else "failed" if bar.failed else one.end_reason or "unknown"
        first = x2 if bar.first is None else self.scale.x(bar.first)
        self.parts.append(f"<g><title>{_text(about)}</title>")
        if first > x1:
            self.parts.append(_rect("wait", x1, y, first - x1, BAR))
        if bar.first is not None or x2 <= x1:
            wide = max(x2 - first, 2.0)
            style = f"try try-{_token(state)}"
            self.parts.append(_rect(style, min(first, RIGHT - wide), y, wide, BAR))
            labels = [f"{one.number}: {one.grade} {bar.tokens}", bar.tokens, str(one.number)]
            if not one.grade:
                labels[0] = f"{one.number}: {bar.tokens}"
            self._label(labels, first, x2, middle + 4)
        if bar.failed:
            self.parts.append(_line("end", x2, y - 3, x2, y + BAR + 3))
        self.parts.append("</g>")

    def _label(self, choices: Sequence[str], x1: float, x2: float, y: float) -> None:
        """The first of the choices for which there is room."""
        for words in choices:
            if words and len(words) * CHARACTER + 8 <= x2 - x1:
                self._word(x1 + 5, y, words, "inside")
                return

    def _joins(self, lanes: dict[str, float]) -> None:
        """From each attempt whose tokens are followed by another's to that one."""
        former: Bar | None = None
        productive = [bar for bar in self.picture.bars if bar.first is not None]
        for bar in sorted(productive, key=lambda bar: bar.attempt.number):
            if former is not None and bar.first is not None:
                x1, x2 = self.scale.x(min(former.end, bar.first)), self.scale.x(bar.first)
                y1, y2 = lanes[former.attempt.node], lanes[bar.attempt.node]
                grade = bar.attempt.grade
                about = f"Joined on at token {bar.attempt.first_seq or '?'}"
                about += f": {word(GRADES, grade)}" if grade else ""
                self.parts.append(
                    f'<g class="join join-{_token(grade or "none")}"><title>{_text(about)}</title>'
                    f'<path class="seam" d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}"/>'
                    f'<circle class="seam-point" cx="{x2:.1f}" cy="{y2:.1f}" r="4"/></g>'
                )
            former = bar

    def _reader(self) -> None:
        picture = self.picture
        middle = self._lane("Reader", NARROW, "")
        if not picture.visits_known and not picture.absences:
            self._word(LEFT + 4, middle + 4, "not noted by that version", "faint")
        for visit in picture.visits:
            x1, x2 = self.scale.x(visit.start), self.scale.x(visit.end)
            self.parts.append(
                _rect("here", x1, middle - 5, max(x2 - x1, 1.5), 10, "A reader was connected")
            )
        for away in picture.absences:
            x1, x2 = self.scale.x(away.start), self.scale.x(away.end)
            how = word(LEAVINGS, away.how) if away.how else ""
            about = f"No reader: it {how}" if how else "No reader"
            self.parts.append(_rect("away", x1, middle - 5, max(x2 - x1, 1.5), 10, about))
            self._label([about, "No reader", "away"], x1, x2, middle + 4)

    def _pings(self) -> None:
        silences = self.picture.silences
        if not silences:
            return
        middle = self._lane("Signs of life", NARROW, "")
        for silence in silences:
            about = f"{signs_of_life(silence.count)} due to the reader while no token came"
            strokes = "".join(
                _line("ping", x, middle - 6, x, middle + 6)
                for x in dict.fromkeys(round(self.scale.x(at), 1) for at in silence.pings)
            )
            self.parts.append(f"<g><title>{_text(about)}</title>{strokes}</g>")

    def _tokens(self) -> None:
        picture = self.picture
        top, bottom = self.y + 8, self.y + 8 + CHART
        most = max(picture.tokens, picture.delivered, 1)

        def height(seq: int) -> float:
            return bottom - CHART * min(max(seq, 0), most) / most

        self._word(4, top + CHART / 2 + 4, "Tokens", "lane")
        self.parts.append(_line("ground", LEFT, bottom, RIGHT, bottom))
        # Neither time nor tokens ever go back, whatever the clocks said.
        known = [(mark.seq, self.scale.x(mark.at)) for mark in picture.marks]
        known += [
            (bar.attempt.first_seq - 1, self.scale.x(bar.first))
            for bar in picture.bars
            if bar.first is not None and bar.attempt.first_seq is not None
        ]
        points, x = [], LEFT
        for seq, place in sorted(known):
            x = max(x, place)
            points.append((x, height(seq)))
        if points:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            first, last = points[0][0], points[-1][0]
            self.parts.append(
                f'<polygon class="area" points="{first:.1f},{bottom:.1f} {line} {last:.1f},{bottom:.1f}"/>'
                f'<polyline class="tokens" points="{line}"/>'
            )
        for at, seq in picture.cursors:
            self.parts.append(
                f'<circle class="cursor" cx="{self.scale.x(at):.1f}" cy="{height(seq):.1f}" r="3.5">'
                f"<title>The reader came back and had token {seq}</title></circle>"
            )
        if picture.delivered > 0:
            y = height(picture.delivered)
            self.parts.append(_line("delivered", LEFT, y, RIGHT, y))
        words = f"{picture.tokens:,} stored, {picture.delivered:,} delivered"
        self._word(LEFT + 4, bottom + 12, words, "faint")
        self.y = bottom + 16

    def _events(self) -> None:
        if not self.picture.moments:
            return
        middle = self._lane("Events", NARROW, "")
        groups: list[tuple[float, list[str], str]] = []
        for event in sorted(self.picture.moments, key=lambda event: event.at):
            x = self.scale.x(event.at)
            if groups and x - groups[-1][0] < CLOSE:
                x, words, sign = groups.pop()
                groups.append((x, [*words, sentence(event)], sign))
            else:
                groups.append((x, [sentence(event)], _SIGNS.get(event.kind, "•")))
        for x, words, sign in groups:
            shown = sign if len(words) == 1 else f"{sign}+"
            self.parts.append(
                f"<g><title>{_text(' '.join(words))}</title>"
                f'<text class="sign" x="{x:.1f}" y="{middle + 5:.1f}" text-anchor="middle">{_text(shown)}</text></g>'
            )

    def _axis(self, top: float, bottom: float) -> None:
        important: list[datetime] = [gap.start for gap in self.picture.gaps]
        self.parts.append(_line("axis", LEFT, bottom + 4, RIGHT, bottom + 4))
        for tick in self.scale.ticks(important):
            self.parts.append(_line("tick", tick.x, top, tick.x, bottom + 9))
            self._word(tick.x, bottom + 22, tick.words, "axis-label", anchor="middle")
        for piece in self.scale.pieces:
            if piece.squeezed:
                x = (piece.x1 + piece.x2) / 2
                self.parts.append(
                    f'<path class="squeezed" d="M{x - 5:.1f} {bottom + 9:.1f} l4 -10 M{x + 1:.1f} {bottom + 9:.1f} l4 -10">'
                    "<title>Drawn shorter than it was</title></path>"
                )
        self.y = bottom + 28

    # What they are made of

    def _lane(self, name: str, height: float, about: str) -> float:
        """A lane below the last one; its middle."""
        middle = self.y + height / 2
        self.parts.append(_line("ground", LEFT, self.y + height, RIGHT, self.y + height))
        label = named(name)
        shown = label if len(label) <= NAME_LENGTH else f"{label[: NAME_LENGTH - 1]}…"
        full = f"<title>{_text(about)}</title>" if about else ""
        self.parts.append(
            f'<text class="lane" x="4" y="{middle + 4:.1f}">{_text(shown)}{full}</text>'
        )
        self.y += height
        return middle

    def _word(self, x: float, y: float, words: str, style: str, anchor: str = "start") -> None:
        self.parts.append(
            f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(words)}</text>'
        )


def _text(words: str) -> str:
    return escape(named(words))


def _token(stored: str) -> str:
    """What is stored, as part of a class name."""
    return "".join(letter if letter.isalnum() else "-" for letter in stored[:24].lower()) or "none"


def _rect(style: str, x: float, y: float, width: float, height: float, about: str = "") -> str:
    x = min(x, WIDTH - width)
    title = f"<title>{_text(about)}</title>" if about else ""
    return (
        f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        f"{'>' + title + '</rect>' if title else '/>'}"
    )


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
