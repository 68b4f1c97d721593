"""Which tokens went to waste, by whose fault: pure arithmetic over runs of the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Run(NamedTuple):
    """Tokens ``first``..``last`` of a log, all of one attempt."""

    attempt: int
    first: int
    last: int


def undelivered(runs: Iterable[Run], delivered: int, log: int) -> dict[int | None, int]:
    """How many of the tokens ``delivered``+1..``log`` each attempt had produced.

    None stands for those that are in no run: the sum is always what is missing.
    """
    result: dict[int | None, int] = {}
    missing = log - delivered
    for run in runs:
        tokens = min(run.last, log) - max(run.first, delivered + 1) + 1
        if tokens > 0:
            result[run.attempt] = result.get(run.attempt, 0) + tokens
            missing -= tokens
    if missing > 0:
        result[None] = missing
    return result
