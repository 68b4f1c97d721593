"""Which fault hits what, and when: drawn from rates, fixed by the seed, without any I/O.

Each kind has a generator of its own, so that another rate of one kind leaves the others where they
were. What would leave no node (or no gateway) at all is put off until it does not.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import get_args

from bench.chaos.records import FaultKind

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
TAKES_AWAY: frozenset[FaultKind] = frozenset(
    {"node_kill", "node_stop", "node_freeze", "gateway_kill"}
)
"""Faults after which their target serves nobody for a while."""
LASTING: dict[FaultKind, tuple[float, float]] = {
    "node_kill": (0.5, 3.0), "node_stop": (1.0, 6.0), "node_freeze": (1.0, 6.0),
    "node_reset": (0.0, 0.0), "node_slow": (1.0, 5.0), "gateway_kill": (0.0, 2.0),
    "redis_restart": (0.0, 1.0), "postgres_restart": (0.0, 1.0),
}  # fmt: skip
"""Seconds, at least and at most, until what was done is undone; a process that was killed then
still has to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One fault: ``at`` seconds after the first stream, undone ``seconds`` later."""

    at: float
    kind: FaultKind
    target: str
    seconds: float

    @property
    def until(self) -> float:
        return self.at + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a schedule is drawn from."""

    seconds: float
    """Faults begin within this time."""
    per_minute: Mapping[FaultKind, float]
    """How often each kind happens, on average."""
    targets: Mapping[FaultKind, Sequence[str]]
    """Whom it may hit. Faults of kinds with the same targets know of each other."""
    regular: bool = False
    """One in each period instead of a draw: as many as the rate says, never two in a row at once."""
    each_once: bool = False
    """Every kind with a rate happens, however short the run."""
    all_at_once: bool = False
    """The last node may be taken away, too."""
    lasting: Mapping[FaultKind, tuple[float, float]] = field(default_factory=lambda: LASTING)
    recovery: float = 3.0
    """Seconds after a fault has been undone in which its target does not count as well yet."""


def plan(seed: int, rules: Rules) -> list[Planned]:
    """The schedule, by time. Raises ``ValueError`` if ``each_once`` does not fit into the run."""
    placed: list[Planned] = []
    must, may = [], []
    for kind, per_minute in sorted(rules.per_minute.items()):
        if per_minute > 0 and rules.targets.get(kind):
            drawn = list(_drawn(random.Random(f"{seed} {kind}"), kind, per_minute, rules))
            must += drawn[:1] if rules.each_once else []
            may += drawn[1:] if rules.each_once else drawn
    for wish in sorted(must, key=lambda wish: wish.at):
        chosen = _place(wish, placed, rules) or _place(wish.earlier(), placed, rules)
        if chosen is None:
            raise ValueError(
                f"{rules.seconds:.0f} s are too short for a {wish.kind} besides the rest"
            )
        placed.append(chosen)
    for wish in sorted(may, key=lambda wish: wish.at):
        if (chosen := _place(wish, placed, rules)) is not None:
            placed.append(chosen)
    return sorted(placed, key=lambda fault: (fault.at, fault.kind))


@dataclass(frozen=True, slots=True)
class _Wish:
    at: float
    kind: FaultKind
    seconds: float
    choice: float

    def earlier(self) -> _Wish:
        return _Wish(0.0, self.kind, self.seconds, self.choice)


def _drawn(
    chance: random.Random, kind: FaultKind, per_minute: float, rules: Rules
) -> Iterable[_Wish]:
    least, most = rules.lasting[kind]
    mean = 60 / per_minute
    at = 0.0
    for number in count():
        if rules.regular:
            at = (number + chance.random()) * mean
        else:
            at += chance.expovariate(1 / mean)
        if at >= rules.seconds:
            if number > 0 or not rules.each_once:
                return
            at = chance.uniform(0.0, rules.seconds)
        yield _Wish(at, kind, chance.uniform(least, most), chance.random())


def _place(wish: _Wish, placed: Sequence[Planned], rules: Rules) -> Planned | None:
    """The fault at its time or, where that may not be, as soon as it may; None: not in this run."""
    targets = rules.targets[wish.kind]
    others = [fault for fault in placed if set(rules.targets[fault.kind]) & set(targets)]
    moments = sorted(
        {wish.at, *(end for f in others if (end := f.until + rules.recovery) > wish.at)}
    )
    for at in moments:
        if at >= rules.seconds:
            return None
        free = [target for target in targets if _may_hit(wish, target, at, targets, others, rules)]
        if free:
            target = free[int(wish.choice * len(free))]
            return Planned(at=at, kind=wish.kind, target=target, seconds=wish.seconds)
    return None


def _may_hit(
    wish: _Wish,
    target: str,
    at: float,
    targets: Sequence[str],
    others: Sequence[Planned],
    rules: Rules,
) -> bool:
    end = at + wish.seconds + rules.recovery
    during = [f for f in others if f.at < end and at < f.until + rules.recovery]
    if any(fault.target == target for fault in during):
        return False
    if wish.kind not in TAKES_AWAY or rules.all_at_once or len(targets) == 1:
        return True
    away = {fault.target for fault in during if fault.kind in TAKES_AWAY}
    return bool(set(targets) - away - {target})


@dataclass(frozen=True, slots=True)
class Cut:
    """What a reader does to its own connection once it has this many tokens (0: before any)."""

    after: int
    away: float
    """Seconds until it comes back: at once, within the usual grace period, or after it."""
    reset: bool
    """By RST instead of FIN."""


@dataclass(frozen=True, slots=True)
class Course:
    """How one stream's reader behaves."""

    cuts: tuple[Cut, ...] = ()
    leaves: int | None = None
    """Goes away for good once it has this many tokens."""


def course(seed: int, index: int, tokens: int, *, cut: float, leave: float) -> Course:
    """The same for the same seed and index. ``cut`` and ``leave``: shares of the streams."""
    if cut <= 0 and leave <= 0:
        return Course()
    chance = random.Random(f"{seed} stream {index}")
    if chance.random() < leave:
        return Course(leaves=chance.randrange(1, max(2, tokens)))
    if chance.random() >= cut:
        return Course()
    places = sorted({chance.randrange(tokens) for _ in range(chance.randint(1, 3))})
    return Course(
        tuple(
            Cut(
                after,
                chance.choice([0.0, chance.uniform(0, 2), chance.uniform(3, 6)]),
                chance.random() < 0.5,
            )
            for after in places
        )
    )
