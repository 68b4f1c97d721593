"""The URLs that Channels consumers answer; everything else is Django's."""

from __future__ import annotations

from django.urls import URLPattern, path

from streaming.consumers.health import HealthConsumer, ReadyConsumer
from streaming.consumers.openai import ChatCompletionsConsumer, ModelsConsumer

http_urlpatterns: list[URLPattern] = [
    path("v1/chat/completions", ChatCompletionsConsumer.as_asgi()),
    path("v1/models", ModelsConsumer.as_asgi()),
    path("healthz", HealthConsumer.as_asgi()),
    path("readyz", ReadyConsumer.as_asgi()),
]
websocket_urlpatterns: list[URLPattern] = []
