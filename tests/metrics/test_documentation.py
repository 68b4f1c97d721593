"""``docs/metrics.md`` names what ``/metrics`` exposes, no more and no less; and few series of it."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path

from streaming.fleet.nodes import Fleet
from streaming.metrics.plain import REGISTRY
from streaming.services.exposition import (
    node_families,
    ratio_families,
    socket_families,
    stored_families,
)
from tests.durability.reader import Readers, question
from tests.engine_simulator.process import SimulatorProcess
from tests.metrics.scrape import exposed_name, scrape, scraped
from tests.stack import Stack

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
EXACT_NAMES = {
    "sse_connections_active": "gauge",
    "sse_chunks_delivered_total": "counter",
    "vllm_cache_utilization": "gauge",
}
LABELS = {"node", "model", "action", "cause", "grade", "state", "protocol", "end", "code"} | {
    "reason", "outcome", "task", "kind", "le", "level", "variant",
}  # fmt: skip


def documented() -> dict[str, tuple[str, list[str]]]:
    """name: type and labels"""
    rows = ROW.findall(DOCUMENT.read_text())
    return {name: (kind, re.findall(r"`(\w+)`", labels)) for name, kind, labels in rows}


def declared() -> dict[str, str]:
    seen_at_scrapes = [
        *node_families(Fleet()),
        *stored_families(None, 0.0),
        *ratio_families([]),
        *socket_families([]),
    ]
    families = [*REGISTRY.collect(), *seen_at_scrapes]
    return {exposed_name(family.name, family.type): family.type for family in families}


async def test_every_metric_is_documented_with_its_type() -> None:
    assert {name: kind for name, (kind, _) in documented().items()} == declared()
    assert EXACT_NAMES.items() <= declared().items()


async def test_expressions_name_metrics_that_exist() -> None:
    known = set(documented())
    for block in re.findall(r"```(?:promql|yaml)\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        code = re.sub(r"#.*", "", block)
        used = re.findall(r"\b(?:unbroken|sse|vllm)_\w+", code)
        assert used
        for name in used:
            assert re.sub(r"_(bucket|sum|count)$", "", name) in known, name


async def test_what_is_exposed_after_traffic(start_stack) -> None:
    """Names, types and labels are those of the document, and traffic adds no series."""
    # With a pace: what comes in one read has no time between its tokens, and so no series of it.
    with SimulatorProcess("vllm", pace=200) as a, SimulatorProcess("llamacpp", pace=200) as b:
        stack: Stack = start_stack(engine_nodes=[f"a=vllm+{a.url}", f"b=llamacpp+{b.url}"])
        url = stack.gateway().url
        sizes: list[Counter[str]] = []
        for tenant in ("acme", "globex", "initech"):
            async with Readers(url, stack.api_key(tenant)) as readers:
                seen = await readers.ask_many(4, tenant, 20, user=f"user of {tenant}")
            assert all(one.is_whole for one in seen)
            now = await scraped(
                url,
                lambda s: (
                    s.value("unbroken_tokens_delivered_total")
                    == s.value("unbroken_tokens_generated_total")
                ),
            )
            # A gateway settles in its own time where no worker does.
            sizes.append(Counter(name for name, _ in now.samples if "_settlement_" not in name))
            secrets = {tenant, f"user of {tenant}", *(one.session_id for one in seen)}
            values = {value for _, labels in now.samples for _, value in labels}
            assert not secrets & values
        grown = {name for name, size in sizes[-2].items() if sizes[-1][name] != size}
        assert not grown, "the third tenant must not be seen in the series"
        assert len(now.samples) < 1000
        described = documented()
        for name, kind in now.families.items():
            assert described[name][0] == kind, name
        for name, labels in now.samples:
            family = name
            if family not in described:
                family = re.sub(r"_(bucket|sum|count)$", "", name)
            names = {label for label, _ in labels} - {"le"}
            assert names == set(described[family][1]), name
            assert names <= LABELS


async def test_broken_requests_make_no_series_of_their_own(start_stack) -> None:
    url = start_stack().gateway().url
    async with Readers(url, "no key") as readers:
        await asyncio.gather(*(readers.ask(question("Who", 5)) for _ in range(3)))
        before = len(scrape(url).samples)
        for path in ("/v1/sessions/1", "/v1/sessions/2/events", "/v1/models"):
            (await readers.client.get(path)).close()
        assert len(scrape(url).samples) <= before + 1
