"""When sessions begin: by day more than by night, and what comes over many of them at once."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway_project.demo import courses
from gateway_project.demo.answers import Answer, answer
from gateway_project.demo.copying import Batch, moment
from gateway_project.demo.course import Course
from gateway_project.demo.faults import Fault, fault
from gateway_project.demo.fleet import ALIASES, MODELS, World
from gateway_project.demo.session_rows import write

HOUR = 3600
INTERRUPTED = 0.05
"""The share of all sessions."""
IN_STORMS = 0.6
"""Of them, those that something comes over together."""
MOST_ANSWERS = 1500
"""Different answers; of more sessions some read alike."""
SESSIONS_AT_ONCE = 1000
"""In one transaction, and in memory."""
LATEST = 120.0
"""Seconds before now at which the last sessions begin."""
LAST_NIGHT = 9
"""Hours before now at which there is always something to be found."""
OF_GATEWAYS = 0.2
"""The share of storms that come over a gateway rather than over a node."""
MODEL_WEIGHTS = (3, 1)


@dataclass(frozen=True, slots=True)
class Start:
    """One session to be. Undisturbed it begins at the Unix time ``at``; else that is when ``fault``
    comes over it, or ``of_gateway`` (crash, shutdown), and over ``siblings`` others with it."""

    at: float
    node: str = ""
    fault: Fault | None = None
    of_gateway: str = ""
    process: int | None = None
    siblings: int = 0
    is_first: bool = False
    """Of those that it comes over."""


def batches(
    world: World, chance: random.Random, sessions: int, *, announced: bool
) -> Iterator[Batch]:
    """So many sessions, roughly in the order of their time, some hundreds at once."""
    count = max(2, min(sessions, MOST_ANSWERS) // len(MODELS))
    answers = {model: [answer(chance, ALIASES[model]) for _ in range(count)] for model in MODELS}
    batch = Batch()
    for start in _starts(world, chance, sessions):
        write(_session(world, chance, start, answers), batch, announced=announced)
        if start.node and start.is_first:
            _note_trouble(world, chance, start, batch)
        if batch.sessions >= SESSIONS_AT_ONCE:
            yield batch
            batch = Batch()
    if batch.sessions:
        yield batch


def _session(
    world: World, chance: random.Random, start: Start, answers: dict[str, list[Answer]]
) -> Course:
    model = chance.choices(list(MODELS), MODEL_WEIGHTS)[0]
    if start.node:
        model = next(name for name, nodes in MODELS.items() if start.node in nodes)
    customers = world.customers
    course = Course(
        world,
        chance,
        customer=chance.choices(customers, [1 / (rank + 1) for rank in range(len(customers))])[0],
        model=model,
        answer=chance.choice(answers[model]),
        at=start.at,
        process=start.process,
    )
    course.begin(start.node or chance.choice(MODELS[model]))
    if start.fault is not None:
        courses.failed_over(course, start.fault, start.siblings)
    elif start.of_gateway:
        courses.OF_GATEWAYS[start.of_gateway](course)
    else:
        courses.usual(chance)(course)
    return course


def _note_trouble(world: World, chance: random.Random, start: Start, batch: Batch) -> None:
    """What the gateways noted of the node that a storm came over."""
    assert start.fault is not None
    down_at = start.at + chance.uniform(0.2, 1.5)
    up_at = down_at + chance.uniform(20, 600)
    course = (
        (start.at + 0.05, "suspect", "up", f"{start.fault.seen.value}: {start.fault.said}"),
        (down_at, "down", "suspect", "no answer to a probe"),
        (up_at, "up", "down", ""),
    )
    for at, kind, was, reason in course:
        data = {"by": f"gateway {world.gateway(at, 0)}", "was": was, "reason": reason}
        values = (world.nodes[start.node], start.node, moment(at), kind, data)
        batch.add("streaming_nodeevent", values)


def _starts(world: World, chance: random.Random, sessions: int) -> Iterator[Start]:
    """All of them, an hour's at a time."""
    first, last = world.starts_at.timestamp(), world.ends_at.timestamp() - LATEST
    hours = [first + HOUR * number for number in range(max(1, math.ceil((last - first) / HOUR)))]
    weights = [_business(at) * chance.uniform(0.8, 1.2) for at in hours]
    interrupted = round(INTERRUPTED * sessions)
    special: dict[int, list[Start]] = {}

    def place(hour: int, starts: list[Start]) -> None:
        special.setdefault(hour, []).extend(starts)

    left, storms = round(IN_STORMS * interrupted), 0
    hour = max(0, len(hours) - LAST_NIGHT)
    while left > 0:
        size = min(left, _storm_size(chance, sessions))
        # However few storms there are, the second one comes over a gateway.
        of_gateway = storms == 1 or (storms > 1 and chance.random() < OF_GATEWAYS)
        place(hour, _storm(chance, _within(chance, hours[hour], last), size, of_gateway))
        storms += 1
        left -= size
        hour = chance.choices(range(len(hours)), weights)[0]
    for hour in chance.choices(range(len(hours)), weights, k=round((1 - IN_STORMS) * interrupted)):
        at = _within(chance, hours[hour], last)
        place(hour, [Start(at, fault=fault(chance, of_storms=False))])

    rest = sessions - sum(map(len, special.values()))
    total, passed, begun = sum(weights), 0.0, 0
    for number, at in enumerate(hours):
        passed += weights[number]
        until = round(rest * passed / total)
        starts = [Start(_within(chance, at, last)) for _ in range(until - begun)]
        begun = until
        yield from sorted([*starts, *special.pop(number, [])], key=lambda start: start.at)


def _storm(chance: random.Random, at: float, size: int, of_gateway: bool) -> list[Start]:
    """What comes over so many sessions in one moment."""
    if of_gateway:
        what = chance.choice(tuple(courses.OF_GATEWAYS))
        process = chance.randrange(2)
        return [Start(at, of_gateway=what, process=process) for _ in range(size)]
    node = chance.choice([node for nodes in MODELS.values() for node in nodes])
    what_failed = fault(chance, of_storms=True)
    return [
        Start(at, node=node, fault=what_failed, siblings=size - 1, is_first=number == 0)
        for number in range(size)
    ]


def _storm_size(chance: random.Random, sessions: int) -> int:
    """Small ones are frequent; the more is going on, the more are hit."""
    middle = 9 * max(1.0, sessions / 20_000) ** 0.4
    return round(min(max(middle * chance.lognormvariate(0, 0.7), 3), 400))


def _within(chance: random.Random, hour: float, last: float) -> float:
    return min(hour + HOUR * chance.random(), last - chance.random())


def _business(at: float) -> float:
    """How busy an hour is: most at noon, least at four, and less at weekends."""
    time = datetime.fromtimestamp(at, UTC)
    daytime = 0.15 + 0.85 * max(0.0, math.sin(math.pi * (time.hour - 6) / 15)) ** 1.3
    return daytime * (0.55 if time.weekday() >= 5 else 1.0)
