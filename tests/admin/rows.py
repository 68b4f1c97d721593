"""Rows as gateways write them."""

from __future__ import annotations

import json
from array import array
from typing import Any

from django.utils import timezone

from streaming.core.ids import uuid7
from streaming.models import (
    Attempt,
    GatewayInstance,
    Incident,
    InferenceNode,
    ModelAlias,
    ModelPolicy,
    NodeEvent,
    OutboxMessage,
    SessionEvent,
    SessionFence,
    StreamSession,
    TaskRun,
    Tenant,
    TokenCheckpoint,
)
from streaming.services.api_keys import create_api_key

QUESTION = "What is the <b>secret</b> of the lighthouse?"
ANSWER = "It is <script>alert('the answer')</script>, of course."
SCRIPT = "<script>alert('end user')</script>"


def add_session(**columns: Any) -> StreamSession:
    """An answer that was interrupted once, with a row in every table about it."""
    now = timezone.now()
    tenant = Tenant.objects.filter(name="acme").first()
    if tenant is None:
        key, _ = create_api_key(tenant_name="acme")
        tenant = key.tenant
        ModelAlias.objects.create(alias="chat-default", model="small")
    node, _ = InferenceNode.objects.get_or_create(
        name="gpu-a", dialect="vllm", base_url="http://gpu-a:8000", source="environment"
    )
    if not ModelPolicy.objects.exists():
        ModelPolicy.objects.create(model=SCRIPT)
        NodeEvent.objects.create(node=node, node_name="gpu-a", kind="down", data={"reason": SCRIPT})
    owner = GatewayInstance.objects.create(hostname="here", pid=1, started_at=now, heartbeat_at=now)
    body = {"model": "chat-default", "messages": [{"role": "user", "content": QUESTION}]}
    values = {
        "id": uuid7(), "reference": "K7Q-4MX", "tenant": tenant, "end_user": SCRIPT,
        "request_id": "req-1", "protocol": "openai", "model": "small", "owner": owner,
        "model_requested": "chat-default", "request": json.dumps(body).encode(),
        "state": "completed", "failovers": 1, "completion_tokens": 2, "created_at": now,
        "evidence": {"said": SCRIPT},
    }  # fmt: skip
    session = StreamSession.objects.create(**{**values, **columns})
    SessionFence.objects.create(session=session, epoch=1, durable_seq=3)
    for number, grade in ((1, ""), (2, "exact")):
        Attempt.objects.create(
            session=session, number=number, epoch=1, node=node, node_name="gpu-a", started_at=now,
            engine_request_id=f"{session.pk}-{number}", seam_grade=grade, end_detail=SCRIPT,
        )  # fmt: skip
    TokenCheckpoint.objects.create(
        session=session, epoch=1, attempt=1, first_seq=1, last_seq=2, text=ANSWER.encode(),
        token_ids=array("i", [7, 8]).tobytes(), created_at=now, digest=b"\xab" * 16,
        text_ends=array("i", [5, len(ANSWER)]).tobytes(),
    )  # fmt: skip
    SessionEvent.objects.create(
        session=session, at=now, kind="recovering", seq=1, data={"cause": SCRIPT}
    )
    OutboxMessage.objects.create(session_id=session.pk, kind="session_ended", created_at=now)
    Incident.objects.get_or_create(
        kind="kv_not_reclaimed", subject="gpu-a", node=node, data={"said": SCRIPT}
    )
    TaskRun.objects.get_or_create(
        name="reclaim_kv_cache", defaults={"started_at": now, "error": SCRIPT}
    )
    return session
