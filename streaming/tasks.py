"""Celery's way to the services; the schedule is in ``gateway_project.celery``.

Every task may run twice at once and may be killed at any time: what it has left undone the next run
finds. How it went is noted by ``services.task_runs``.
"""

from __future__ import annotations

from typing import Any

from celery import shared_task

from streaming.services import (
    defragment,
    embed_tokens,
    explaining,
    orphans,
    partitions,
    purge,
    reclaim,
    reduction,
    webhook_deliveries,
)
from streaming.services.task_runs import recorded

SOON = {"countdown": 1.0, "expires": 30.0}
"""For what has more to do: meanwhile the worker does something else."""


@shared_task(name="reclaim_kv_cache")
@recorded("reclaim_kv_cache")
def reclaim_kv_cache() -> dict[str, Any]:
    """See to it that no engine works for nobody."""
    return reclaim.reclaim_kv_cache()


@shared_task(name="settle_abandoned_sessions")
@recorded("settle_abandoned_sessions")
def settle_abandoned_sessions() -> dict[str, Any]:
    """Suspend or end the sessions that no gateway looks after."""
    return orphans.settle_abandoned_sessions()


@shared_task(name="explain_sessions")
@recorded("explain_sessions")
def explain_sessions() -> dict[str, Any]:
    """Tell what happened to the sessions that have changed, and group them into incidents."""
    result = explaining.explain_all()
    if result["more"]:
        explain_sessions.apply_async(**SOON)
    return result


@shared_task(name="defragment_nodes")
@recorded("defragment_nodes")
def defragment_nodes() -> dict[str, Any]:
    """Clean the caches of nodes that are full of nothing."""
    result = defragment.defragment_nodes()
    if result.get("under_way"):
        defragment_nodes.apply_async(**SOON)
    return result


@shared_task(name="purge_expired_content")
@recorded("purge_expired_content")
def purge_expired_content() -> dict[str, Any]:
    """Forget what was asked and answered long ago."""
    result = purge.purge_expired_content()
    if result["more"]:
        purge_expired_content.apply_async(**SOON)
        return result
    partly = {"made": partitions.make_partitions(), **partitions.drop_partitions()}
    partly["embed_tokens"] = embed_tokens.forget_expired()
    return {**result, **partly, "overdue": purge.watch_overdue()}


@shared_task(name="reduce_expired_metadata")
@recorded("reduce_expired_metadata")
def reduce_expired_metadata() -> dict[str, Any]:
    """Forget who asked long ago."""
    result = reduction.reduce_expired_metadata()
    if result["more"]:
        reduce_expired_metadata.apply_async(**SOON)
    return result


@shared_task(name="deliver_webhooks")
@recorded("deliver_webhooks")
def deliver_webhooks() -> dict[str, Any]:
    """Tell tenants' webhooks what happened to their sessions."""
    result = webhook_deliveries.deliver_webhooks()
    if result["more"]:
        deliver_webhooks.apply_async(**SOON)
    return result


@shared_task(name="forget_webhooks")
@recorded("forget_webhooks")
def forget_webhooks() -> dict[str, Any]:
    """Delete what webhooks were told long ago."""
    result = webhook_deliveries.forget_deliveries()
    if result["more"]:
        forget_webhooks.apply_async(**SOON)
    return result
