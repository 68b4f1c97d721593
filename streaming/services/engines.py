"""Questions that tasks and commands put to engines, outside of any gateway process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from streaming.core.failures import AttemptFailed, RejectedByEngine
from streaming.core.nodes import NodeOptions
from streaming.engines.base import Dialect, Figures
from streaming.engines.http import EngineClient, engine_client
from streaming.engines.registry import dialect_for
from streaming.models import InferenceNode

logger = logging.getLogger(__name__)

FIGURES_SECONDS = 2.0
ABORT_SECONDS = 2.0
RESET_SECONDS = 10.0
# An engine lets go within 0.15 s of an abort, as measured.
AFTER_ABORT_SECONDS = 0.25
ERRORS = (AttemptFailed, RejectedByEngine, TimeoutError)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a node said of its load between ``at`` and ``until``; ``figures`` None: it could not be
    asked."""

    at: datetime
    until: datetime
    figures: Figures | None

    @property
    def held(self) -> int | None:
        """Requests it has, running and waiting; None: it does not say."""
        if self.figures is None or self.figures.running is None:
            return None
        return self.figures.running + (self.figures.waiting or 0)


def observe(
    nodes: Iterable[InferenceNode], aborts: Mapping[int, Sequence[str]] | None = None
) -> dict[int, Observation]:
    """Ask all nodes at once for their figures; by node id.

    ``aborts``: request ids to abort first, by node id, where the node has a call for that.
    """
    return asyncio.run(_observe(list(nodes), aborts or {}))


def reset_cache(node: InferenceNode) -> bool:
    """Drop the node's prefix cache; False: it does not offer that, or refuses now.

    Raises ``AttemptFailed``, ``RejectedByEngine`` or ``TimeoutError``.
    """

    async def reset() -> bool:
        client = engine_client()
        try:
            async with asyncio.timeout(RESET_SECONDS):
                return await _dialect(node, client).reset_cache()
        finally:
            await client.aclose()

    return asyncio.run(reset())


async def _observe(
    nodes: list[InferenceNode], aborts: Mapping[int, Sequence[str]]
) -> dict[int, Observation]:
    client = engine_client()
    try:
        found = await asyncio.gather(
            *(_observe_one(node, client, aborts.get(node.pk, ())) for node in nodes)
        )
    finally:
        await client.aclose()
    return {node.pk: observation for node, observation in zip(nodes, found, strict=True)}


async def _observe_one(
    node: InferenceNode, client: EngineClient, request_ids: Sequence[str]
) -> Observation:
    try:
        dialect = _dialect(node, client)
        if request_ids:  # an empty list would make vLLM abort everything
            async with asyncio.timeout(ABORT_SECONDS):
                await dialect.abort(request_ids)
            await asyncio.sleep(AFTER_ABORT_SECONDS)
    except ERRORS as exc:
        logger.info("%s did not take an abort: %s", node.name, exc)
    at = timezone.now()
    try:
        async with asyncio.timeout(FIGURES_SECONDS):
            figures = await _dialect(node, client).figures(FIGURES_SECONDS)
    except ERRORS as exc:
        logger.info("%s does not tell its load: %s", node.name, exc)
        figures = None
    return Observation(at, timezone.now(), figures)


def _dialect(node: InferenceNode, client: EngineClient) -> Dialect:
    options = NodeOptions.parse(node.options)
    return dialect_for(node.dialect, client, node.base_url, options)
