"""Reading ``/metrics`` as Prometheus does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.durability.reader import until


@dataclass(frozen=True)
class Scrape:
    """One answer of ``/metrics``. ``families``: name as exposed → type; ``samples``: every series."""

    families: dict[str, str]
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    def value(self, name: str, **labels: str) -> float | None:
        """Of one series; None if there is none."""
        return self.samples.get((name, frozenset(labels.items())))

    def total(self, name: str) -> float:
        """Over all series of this name."""
        return sum(value for (found, _), value in self.samples.items() if found == name)

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for found, labels in self.samples if found == name]


def scrape(url: str, **headers: str) -> Scrape:
    response = httpx.get(url + "/metrics", headers=headers, timeout=10)
    assert response.status_code == 200, response.text
    families, samples = {}, {}
    for family in text_string_to_metric_families(response.text):
        families[exposed_name(family.name, family.type)] = family.type
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, f"{key} is there twice"
            samples[key] = sample.value
    return Scrape(families, samples)


def exposed_name(name: str, kind: str) -> str:
    """The name that an operator types."""
    return name + "_total" if kind == "counter" else name


async def scraped(url: str, condition: Callable[[Scrape], bool], seconds: float = 15.0) -> Scrape:
    """The first scrape for which the condition holds: other processes tell theirs once a second."""
    last: list[Scrape] = []

    def holds() -> bool:
        last[:] = [scrape(url)]
        return condition(last[0])

    try:
        await until(holds, seconds)
    except TimeoutError:
        shown = [
            f"{name} {dict(labels) or ''} {value:g}"
            for (name, labels), value in last[0].samples.items()
            if value and not name.endswith("_bucket")
        ]
        raise AssertionError("never so; the last scrape was:\n" + "\n".join(shown)) from None
    return last[0]
