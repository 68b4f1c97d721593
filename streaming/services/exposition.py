"""``/metrics`` as text: what all processes of this machine have counted, and what is seen now.

Nodes, tasks and incidents are told by the process that answers, from its memory: every process
knows them all, so several of them do not multiply, and a node that is gone is gone at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from streaming.fleet.breaker import Circuit
from streaming.fleet.nodes import Fleet, Health, Node
from streaming.metrics import directory
from streaming.metrics import stored as others
from streaming.metrics.plain import REGISTRY
from streaming.metrics.sockets import count_sockets, time_wait_sockets
from streaming.runtime.gateway import Gateway
from streaming.runtime.measuring import StoredFigures

NODE_STATES = (*(health.value for health in Health), "draining", "drained")


class _Families:
    """What prometheus_client's encoders read."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def seen_now(gateway: Gateway, now: float) -> list[Metric]:
    """What this process knows without asking anybody; brings its own numbers up to date first.

    Must run on the event loop, which owns all of that. ``now`` is loop time.
    """
    gateway.measuring.look()
    return [*node_families(gateway.fleet), *stored_families(gateway.measuring.stored, now)]


def render(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """The whole text and its content type. Reads files and ``/proc``: run it in a thread."""
    place = directory.path()
    pids = {os.getpid()}
    if place is None:
        counted = list(REGISTRY.collect())
    else:
        counted = _counted_by_all(place)
        pids |= directory.pids(place)
    encode, content_type = choose_encoder(accept)
    everything = [*counted, *ratio_families(counted), *families, *socket_families(pids)]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(everything))
    return encode(registry), content_type


def _counted_by_all(place: Path) -> list[Metric]:
    with directory.locked(place) as is_ours:
        if is_ours:
            directory.bury_dead(place)
        return list(MultiProcessCollector(None, str(place)).collect())


def node_families(fleet: Fleet) -> list[Metric]:
    """The fleet as this process sees it."""
    cache = GaugeMetricFamily(
        "vllm_cache_utilization",
        "Share of the node's KV-cache that is occupied, 0 to 1, whatever its engine.",
        labels=["node"],
    )
    state = GaugeMetricFamily(
        "unbroken_node_state", "1 for the state that the node is in.", labels=["node", "state"]
    )
    circuit = GaugeMetricFamily(
        "unbroken_circuit_state",
        "1 for the state that the node's circuit breaker is in.",
        labels=["node", "state"],
    )
    streams = GaugeMetricFamily(
        "unbroken_node_streams", "Attempts of all gateways that run on the node.", labels=["node"]
    )
    for node in fleet.nodes.values():
        if node.figures is not None and node.figures.kv_usage is not None:
            cache.add_metric([node.name], node.figures.kv_usage)
        _one_hot(state, node.name, NODE_STATES, node_state(node))
        _one_hot(circuit, node.name, [c.value for c in Circuit], node.breaker.state.value)
        streams.add_metric([node.name], node.in_flight + node.others_in_flight)
    return [cache, state, circuit, streams]


def node_state(node: Node) -> str:
    """One word for what an operator wants of a node and how it is."""
    if node.accepting or node.health in (Health.DOWN, Health.UNKNOWN):
        return node.health.value
    return "draining" if node.in_flight + node.others_in_flight else "drained"


def _one_hot(family: GaugeMetricFamily, name: str, states: Iterable[str], current: str) -> None:
    for state in states:
        family.add_metric([name, state], float(state == current))


def stored_families(stored: StoredFigures | None, now: float) -> list[Metric]:
    """What the database said when this process last read it; empty until it has."""
    age = GaugeMetricFamily(
        "unbroken_task_age_seconds",
        "Since the last success of a periodic task (since its start, if it never had one).",
        labels=["task"],
    )
    runs = CounterMetricFamily("unbroken_task_runs", "Runs of a periodic task.", labels=["task"])
    failures = CounterMetricFamily(
        "unbroken_task_failures", "Runs of a periodic task that failed.", labels=["task"]
    )
    incidents = GaugeMetricFamily(
        "unbroken_incidents_open", "Incidents that are open.", labels=["kind"]
    )
    fragmentation = GaugeMetricFamily(
        "unbroken_kv_fragmentation_ratio",
        "Share of the KV-cache that is occupied and belongs to no live session.",
        labels=["node"],
    )
    suspended = GaugeMetricFamily(
        "unbroken_sessions_suspended", "Sessions that wait for their readers to come back."
    )
    read = GaugeMetricFamily(
        "unbroken_stored_figures_age_seconds", "Since the database was last read for these figures."
    )
    if stored is not None:
        since = now - stored.read_at
        for name, task in stored.tasks.items():
            age.add_metric([name], task.age + since)
            runs.add_metric([name], task.runs)
            failures.add_metric([name], task.failures)
        for kind, count in stored.incidents.items():
            incidents.add_metric([kind], count)
        for node, ratio in stored.fragmentation.items():
            fragmentation.add_metric([node], ratio)
        suspended.add_metric([], stored.suspended)
        read.add_metric([], since)
    of_others = (
        [family for families in others.registered for family in families.empty()]
        if stored is None
        else stored.others
    )
    return [age, runs, failures, incidents, fragmentation, suspended, read, *of_others]


def socket_families(pids: Iterable[int]) -> list[Metric]:
    """The sockets of these processes, by state."""
    sockets = GaugeMetricFamily(
        "unbroken_sockets", "TCP sockets of the gateway processes by state.", labels=["state"]
    )
    for state, count in count_sockets(pids).items():
        sockets.add_metric([state], count)
    closed = GaugeMetricFamily(
        "unbroken_time_wait_sockets",
        "Closed TCP sockets of the machine or container that still hold their ports.",
    )
    if (count_closed := time_wait_sockets()) is not None:
        closed.add_metric([], count_closed)
    return [sockets, closed]


def ratio_families(counted: Iterable[Metric]) -> list[Metric]:
    """Delivered per generated token since the counters began; nothing before the first token."""
    totals: Mapping[str, float] = {
        metric.name: sum(sample.value for sample in metric.samples)
        for metric in counted
        if metric.name in ("unbroken_tokens_delivered", "unbroken_tokens_generated")
    }
    ratio = GaugeMetricFamily(
        "unbroken_effective_delivery_ratio",
        "Tokens delivered per token generated, since the start.",
    )
    if generated := totals.get("unbroken_tokens_generated"):
        ratio.add_metric([], totals.get("unbroken_tokens_delivered", 0.0) / generated)
    return [ratio]
