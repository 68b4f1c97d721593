"""The URLs that Channels consumers answer; everything else is Django's."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from streaming.consumers.client_report import ReportConsumer
from streaming.consumers.diagnostics import DiagnosticEndConsumer, DiagnosticStreamConsumer
from streaming.consumers.embed import EmbedTokenConsumer, EmbedTokensConsumer
from streaming.consumers.health import HealthConsumer, ReadyConsumer
from streaming.consumers.live import LiveSocket
from streaming.consumers.metrics import MetricsConsumer
from streaming.consumers.openai import ChatCompletionsConsumer, ModelsConsumer
from streaming.consumers.openapi import OpenApiConsumer
from streaming.consumers.sessions import (
    AckConsumer,
    SessionConsumer,
    SessionEventsConsumer,
    SessionsConsumer,
    StopConsumer,
)
from streaming.consumers.websocket import ChatSocket, UnknownSocket

http_urlpatterns: list[URLPattern] = [
    path("v1/chat/completions", ChatCompletionsConsumer.as_asgi()),
    path("v1/models", ModelsConsumer.as_asgi()),
    path("v1/openapi.json", OpenApiConsumer.as_asgi()),
    path("v1/sessions", SessionsConsumer.as_asgi()),
    path("v1/sessions/<str:session_id>", SessionConsumer.as_asgi()),
    path("v1/sessions/<str:session_id>/events", SessionEventsConsumer.as_asgi()),
    path("v1/sessions/<str:session_id>/stop", StopConsumer.as_asgi()),
    path("v1/sessions/<str:session_id>/ack", AckConsumer.as_asgi()),
    path("v1/sessions/<str:session_id>/report", ReportConsumer.as_asgi()),
    path("v1/embed-tokens", EmbedTokensConsumer.as_asgi()),
    path("v1/embed-tokens/<str:token_id>", EmbedTokenConsumer.as_asgi()),
    path("v1/diagnostics/stream", DiagnosticStreamConsumer.as_asgi()),
    path("v1/diagnostics/ended", DiagnosticEndConsumer.as_asgi()),
    path("healthz", HealthConsumer.as_asgi()),
    path("metrics", MetricsConsumer.as_asgi()),
    path("readyz", ReadyConsumer.as_asgi()),
]
websocket_urlpatterns: list[URLPattern] = [
    path("ws/chat/", ChatSocket.as_asgi()),
    path("ws/admin/live/", LiveSocket.as_asgi()),
    re_path(r"", UnknownSocket.as_asgi()),
]
