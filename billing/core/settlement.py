"""From what was billed to what is to be: the lines of a settlement, as pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One settlement: tokens ``start``+1..``end`` of the answer, and prompt tokens.

    Where ``end`` < ``start`` tokens are given back; ``corrects`` is the number of the settlement that
    had charged them. ``prompt`` and ``cached`` are negative when the prompt is given back.
    """

    n: int
    start: int
    end: int
    prompt: int = 0
    cached: int = 0
    corrects: int | None = None

    @property
    def output(self) -> int:
        return self.end - self.start


def settle(before: Sequence[Line], billable: int, prompt: int, cached: int) -> list[Line]:
    """The lines that bring a session from what ``before`` has billed to ``billable`` tokens.

    The prompt is charged with the first token, once, and given back with it. What is given back is
    taken from the last charges first, one line for each charge that it touches. The first settlement
    is a line even if it comes to nothing; later ones only if something changes.
    """
    billed = before[-1].end if before else 0
    n = len(before) + 1
    if billable >= billed:
        first = billed == 0 and billable > 0
        if billable == billed and before:
            return []
        return [Line(n, billed, billable, prompt if first else 0, cached if first else 0)]
    lines: list[Line] = []
    for charge in reversed(standing(before)):
        if billed <= billable:
            break
        end = max(charge.start, billable)
        whole = end == 0
        lines.append(
            Line(
                n + len(lines),
                billed,
                end,
                -charge.prompt if whole else 0,
                -charge.cached if whole else 0,
                corrects=charge.n,
            )
        )
        billed = end
    return lines


def standing(lines: Sequence[Line]) -> list[Line]:
    """The charges of ``lines`` that have not been given back, each with what is left of it."""
    left: list[Line] = []
    for line in lines:
        if line.end >= line.start:
            if line.end > line.start:
                left.append(line)
            continue
        last = left.pop()
        if line.end > last.start:
            left.append(Line(last.n, last.start, line.end, last.prompt, last.cached))
    return left
