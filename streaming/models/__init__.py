"""The tables of the streaming app; the journal writes the hot ones by SQL, the ORM reads all."""

from streaming.models.attempt import Attempt
from streaming.models.checkpoint import TokenCheckpoint
from streaming.models.desk import (
    ChangedSession,
    FlaggedSession,
    InterruptedSession,
    SessionReview,
    TenantMember,
)
from streaming.models.embed import EmbedToken
from streaming.models.event import OutboxMessage, SessionEvent
from streaming.models.instance import GatewayInstance
from streaming.models.node import InferenceNode, ModelPolicy, NodeEvent
from streaming.models.operation import Incident, Lease, TaskRun
from streaming.models.rule import ContentRule
from streaming.models.session import IdempotencyKey, SessionFence, StreamSession
from streaming.models.tenant import ApiKey, ModelAlias, Tenant
from streaming.models.webhook import WebhookDelivery, WebhookEndpoint

__all__ = [
    "ApiKey",
    "Attempt",
    "ChangedSession",
    "ContentRule",
    "EmbedToken",
    "FlaggedSession",
    "GatewayInstance",
    "IdempotencyKey",
    "Incident",
    "InferenceNode",
    "InterruptedSession",
    "Lease",
    "ModelAlias",
    "ModelPolicy",
    "NodeEvent",
    "OutboxMessage",
    "SessionEvent",
    "SessionFence",
    "SessionReview",
    "StreamSession",
    "TaskRun",
    "Tenant",
    "TenantMember",
    "TokenCheckpoint",
    "WebhookDelivery",
    "WebhookEndpoint",
]
