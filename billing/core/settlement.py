"""From what was billed to what is to be: the lines of a settlement, as pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


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

    The prompt (``prompt`` tokens, ``cached`` of them) is charged with the first token, once, and given
    back with it; where its length becomes known only later, it is charged then. What is given back
    is taken from the last charges first, one line for each charge that it touches. The first
    settlement is a line even if it comes to nothing; later ones only if something changes.
    """
    billed = before[-1].end if before else 0
    charges = standing(before)
    lines: list[Line] = []
    for charge in reversed(charges):
        end = min(charge.end, max(charge.start, billable))
        whole = billable == 0 and charge.prompt > 0
        if end == charge.end and not whole:
            continue
        lines.append(
            Line(
                len(before) + len(lines) + 1,
                billed,
                billed + end - charge.end,
                -charge.prompt if whole else 0,
                -charge.cached if whole else 0,
                corrects=charge.n,
            )
        )
        billed = lines[-1].end
    owed = prompt if billable and not any(charge.prompt for charge in charges) else 0
    if billable > billed or owed or not before:
        n = len(before) + len(lines) + 1
        lines.append(Line(n, billed, billable, owed, min(cached, owed)))
    return lines


def standing(lines: Sequence[Line]) -> list[Line]:
    """The charges of ``lines`` that have not been given back, each with what is left of it."""
    left: dict[int, Line] = {}
    for line in lines:
        if line.corrects is None:
            left[line.n] = line
            continue
        charge = left[line.corrects]
        left[charge.n] = replace(
            charge,
            end=charge.end + line.output,
            prompt=charge.prompt + line.prompt,
            cached=charge.cached + line.cached,
        )
    return [line for line in left.values() if line.output or line.prompt]
