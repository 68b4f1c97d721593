"""Looking at one node: does it answer, what can it do, how is it loaded, and does it generate?"""

from __future__ import annotations

import asyncio

from streaming.conf import conf
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.engines.base import Figures, NodeReport
from streaming.fleet.findings import Finding
from streaming.fleet.nodes import Health, Node

PROGRESS_SECONDS = 0.5
"""How long a node that generates nothing has to tell its figures again."""


async def probe(node: Node) -> Finding:
    """What there is to find. A mute node (``Node.is_mute``) must generate a token to be well."""
    at = asyncio.get_running_loop().time()
    report, trouble = None, ""
    try:
        async with asyncio.timeout(conf().health_timeout):
            report = await node.dialect.probe(conf().health_timeout)
        if node.is_mute:
            trouble = await _pulse(node, report)
    except (AttemptFailed, RejectedByEngine, TimeoutError) as exc:
        trouble = str(exc) or "no answer in time"
    except Exception as exc:  # noqa: BLE001  a strange answer or address must not end the probing
        trouble = f"not what a {node.dialect.name} server says: {exc!r}"
    health = Health.DOWN if trouble else Health.UP
    return Finding(at=at, health=health, reason=trouble, report=report)


async def _pulse(node: Node, report: NodeReport) -> str:
    """Have the node generate a token; what is wrong with it, or nothing.

    A busy one may take a minute to come to it, so progress on other requests is as good.
    """
    model = next(iter(report.models), None)
    if model is None:
        return ""
    asked_at = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(conf().health_timeout):
            await node.dialect.pulse(model, conf().health_timeout)
    except RejectedByEngine:
        return ""  # it has read the request
    except (AttemptFailed, TimeoutError) as exc:
        if isinstance(exc, AttemptFailed) and exc.cause is Cause.BUSY:
            return ""
        if node.last_data > asked_at or await _has_moved(node, report.figures):
            return ""
        return f"it answers, but generates nothing: {exc or 'no token in time'}"
    return ""


async def _has_moved(node: Node, before: Figures | None) -> bool:
    """Whether the engine's own count of its work has grown."""
    if before is None or before.progress is None:
        return False
    try:
        async with asyncio.timeout(PROGRESS_SECONDS):
            after = await node.dialect.figures(PROGRESS_SECONDS)
    except (AttemptFailed, RejectedByEngine, TimeoutError):
        return False
    return after.progress is not None and after.progress != before.progress
