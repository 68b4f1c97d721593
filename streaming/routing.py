"""The URLs that Channels consumers answer; everything else is Django's."""

from __future__ import annotations

from django.urls import URLPattern

http_urlpatterns: list[URLPattern] = []
websocket_urlpatterns: list[URLPattern] = []
