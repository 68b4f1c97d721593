"""What one wants of a defragmentation of the KV-cache, from engines that have none.

A node whose cache is occupied by far more than its live sessions need is reclaimed first; when that
does not help it is drained (its streams move to other nodes), its cache is reset, it is looked at
again, and it is resumed. ``docs/kv-cache.md`` says what that is worth.

Nothing here waits. A run does the next step of what is under way, and is called again soon: the
worker has other sweeps to do, and may be killed at any time. What is under way stands in the
database as a lease for each model of the node (``defragment:MODEL``, held by ``node ID``); whoever
runs next finds it, and a node that was drained by this module is always resumed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
from collections.abc import Iterable
from typing import Any

from django.utils import timezone

from streaming.conf import conf
from streaming.core.fragmentation import fragmentation_index
from streaming.core.nodes import NodeOptions
from streaming.fleet.exporters import ExporterError, read_gpus_now
from streaming.models import InferenceNode, Lease, ModelPolicy
from streaming.models.node import Switch
from streaming.runtime.incidents import IncidentKind
from streaming.services import node_admin, reclaim
from streaming.services.engines import ERRORS, Observation, observe, reset_cache
from streaming.services.incidents import close_incident, open_incident
from streaming.services.leases import release_lease, take_lease
from streaming.services.live_attempts import live_tokens
from streaming.services.node_events import note
from streaming.services.refused import Refused

logger = logging.getLogger(__name__)

TASK = "defragment_nodes"
PREFIX = "defragment:"
STEP_SECONDS = 60.0
"""Longer than one run takes; for so long nobody goes on after a worker was killed."""


def defragment_nodes() -> dict[str, Any]:
    """Do the next step of what is under way, and begin where it is needed.

    ``under_way`` in the answer: how many nodes wait for another call, which should come in a second
    or so. Called twice at once, one of the two does nothing.
    """
    holder = f"{socket.gethostname()} {os.getpid()} {threading.get_ident()}"
    if not take_lease(TASK, holder, STEP_SECONDS):
        return {"skipped": "another run"}
    try:
        under_way = _go_on()
        did = _begin(set(under_way))
        return {"under_way": Lease.objects.filter(name__startswith=PREFIX).count(), "nodes": did}
    finally:
        release_lease(TASK, holder)


def index_of(node: InferenceNode, observation: Observation, live: Iterable[int]) -> float | None:
    """The node's fragmentation index, 0 to 1; None: its engine does not tell enough."""
    figures = observation.figures
    if figures is None:
        return None
    return fragmentation_index(figures.kv_usage, figures.kv_tokens, figures.block_tokens, live)


# Beginning


def _begin(under_way: set[int]) -> dict[str, Any]:
    """Look at all nodes, and begin with those that need it and may be; what was found, by name."""
    nodes = [
        node
        for node in InferenceNode.objects.order_by("pk")
        if node.pk not in under_way and node.state == "up" and node.capabilities.get("figures")
    ]
    found: dict[str, Any] = {}
    for node, index in _indices(nodes):
        if index is None:
            continue
        found[node.name] = {"index": index, "did": "nothing", **_gpu_memory(node)}
        if index <= conf().defragment_threshold:
            close_incident(IncidentKind.KV_FRAGMENTED, node.name)
        else:
            found[node.name]["did"] = _treat(node, index)
    return found


def _indices(nodes: list[InferenceNode]) -> list[tuple[InferenceNode, float | None]]:
    if not nodes:
        return []
    observed = observe(nodes)
    live = live_tokens(node.pk for node in nodes)
    return [(node, index_of(node, observed[node.pk], live[node.pk])) for node in nodes]


def _gpu_memory(node: InferenceNode) -> dict[str, float | None]:
    """What its GPU exporter says, to be seen beside the index; empty where there is none."""
    try:
        gpus = read_gpus_now(NodeOptions.parse(node.options))
    except ExporterError as exc:
        logger.info("the GPU exporter of %s: %s", node.name, exc)
        return {"gpu_memory": None}
    return {} if gpus is None else {"gpu_memory": gpus.memory_share}


def _treat(node: InferenceNode, index: float) -> str:
    """Begin with a fragmented node, if it may be; what was done, in a word or two."""
    switch = _switch(node)
    if switch == Switch.OFF:
        return "switched off"
    if node.options.get("exclusive", "on") != "on":
        return _note(node, "defragment_skipped", index=index, why="others use the node, too")
    if not node.capabilities.get("reset_cache"):
        return _note(node, "defragment_skipped", index=index, why="its engine offers no reset")
    if why := _why_not_now(node):
        return _note(node, "defragment_skipped", index=index, why=why)
    if switch == Switch.DRY_RUN:
        return _note(node, "defragment_would", index=index, steps="reclaim, drain, reset, resume")
    reclaimed = reclaim.sweep(node)
    ((_, again),) = _indices([node])
    if again is None or again <= conf().defragment_threshold:
        return _note(
            node, "defragment_reclaimed", index=index, after=again, attempts=reclaimed.verified
        )
    return _drain(node, again)


def _switch(node: InferenceNode) -> str:
    """Off in one place is off; a dry run in one place is a dry run."""
    policies = ModelPolicy.objects.filter(model__in=node.models_served)
    switches = {node.defragment, *policies.values_list("defragment", flat=True)}
    return next((s for s in (Switch.OFF, Switch.DRY_RUN) if s in switches), Switch.ON)


def _why_not_now(node: InferenceNode) -> str:
    """Empty if it may be taken out now."""
    busy = set(Lease.objects.filter(name__startswith=PREFIX).values_list("name", "holder"))
    others = [
        other
        for other in InferenceNode.objects.exclude(pk=node.pk)
        if other.state == "up" and not any(holder == _holder(other) for _, holder in busy)
    ]
    for model in node.models_served:
        if any(name == _lease(model) for name, _ in busy):
            return f"another node of {model} is being cleaned"
        if not any(model in other.models_served for other in others):
            return f"it is the last one of {model} that is up"
    return "" if node.models_served else "it serves no model"


def _drain(node: InferenceNode, index: float) -> str:
    """Take the node's models, and take it out of work."""
    seconds = conf().defragment_drain_seconds
    taken: list[str] = []
    for model in sorted(node.models_served):
        if not take_lease(_lease(model), _holder(node), seconds):
            for other in taken:
                release_lease(_lease(other), _holder(node))
            return _note(node, "defragment_skipped", index=index, why=f"{model} is being cleaned")
        taken.append(model)
    try:
        node_admin.drain_node(node.name, by=TASK)
    except Refused as exc:  # an operator was faster
        _release(node)
        return _note(node, "defragment_skipped", index=index, why=str(exc))
    return _note(node, "defragment_begun", index=index)


# Going on


def _go_on() -> list[int]:
    """The next step of each node under way; their ids."""
    leases = Lease.objects.filter(name__startswith=PREFIX)
    by_holder = {lease.holder: lease for lease in leases}
    ids = []
    for holder, lease in by_holder.items():
        node_id = int(holder.rpartition(" ")[2])
        ids.append(node_id)
        node = InferenceNode.objects.filter(pk=node_id).first()
        if node is None:
            leases.filter(holder=holder).delete()
        elif node.admin_state == InferenceNode.Admin.ACTIVE:
            # An operator has resumed it, or the worker was killed before it could drain it.
            _release(node)
            _note(node, "defragment_given_up", why="the node was at work again")
        else:
            _step(node, lease)
    return ids


def _step(node: InferenceNode, lease: Lease) -> None:
    """Reset the node once nothing runs there. Whatever goes wrong, it is resumed."""
    is_done = True
    try:
        (observation,) = observe([node]).values()
        if node.admin_state == InferenceNode.Admin.DRAINED and observation.held == 0:
            _reset(node, observation)
        elif timezone.now() > lease.until:
            silent = observation.held is None
            why = "it says nothing" if silent else "it was not drained in time"
            _note(node, "defragment_given_up", why=why, held=observation.held)
        else:
            is_done = False
    finally:
        if is_done:
            _resume(node)


def _reset(node: InferenceNode, before: Observation) -> None:
    """Have the engine forget what nobody needs, and see whether it has."""
    try:
        was_reset = reset_cache(node)
    except ERRORS as exc:
        _note(node, "defragment_failed", why=f"the reset failed: {exc}")
        return
    (after,) = observe([node]).values()
    index = index_of(node, after, ())
    usage = [said.figures.kv_usage if said.figures else None for said in (before, after)]
    data = {"before": usage[0], "after": usage[1], "reset": was_reset}
    if index is not None and index <= conf().defragment_threshold:
        _note(node, "defragmented", **data)
        close_incident(IncidentKind.KV_FRAGMENTED, node.name)
    else:
        _note(node, "defragment_failed", why="its cache stays occupied", **data)
        open_incident(IncidentKind.KV_FRAGMENTED, node.name, node=node, data=data)


def _resume(node: InferenceNode) -> None:
    try:
        node_admin.resume_node(node.name, by=TASK)
    except Refused as exc:  # an operator was faster
        logger.info("%s: %s", node.name, exc)
    _release(node)


def _release(node: InferenceNode) -> None:
    Lease.objects.filter(name__startswith=PREFIX, holder=_holder(node)).delete()


def _lease(model: str) -> str:
    """The name of a model's lease; those of models have up to 200 characters, a lease's has 100."""
    if len(model) > 80:
        model = f"{model[:40]}…{hashlib.sha256(model.encode()).hexdigest()[:32]}"
    return PREFIX + model


def _holder(node: InferenceNode) -> str:
    return f"node {node.pk}"


def _note(node: InferenceNode, kind: str, **data: Any) -> str:
    """Write it into the node's time line; ``kind`` as words."""
    note(node, kind, by=TASK, **data)
    logger.info("%s: %s %s", node.name, kind, data)
    return kind.replace("_", " ")
