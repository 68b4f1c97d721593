"""The pages that Django answers; the API is in ``streaming.routing``."""

from __future__ import annotations

from django.urls import URLPattern, path

from streaming.views import demo, embed

urlpatterns: list[URLPattern] = [
    path("", demo.home, name="home"),
    path("embed/<str:tenant>/", embed.page, name="embed"),
    path("demo/widget", demo.widget, name="demo-widget"),
    path("demo/nodes", demo.nodes, name="demo-nodes"),
    path("demo/nodes/<str:name>/kill", demo.kill_node, name="demo-kill-node"),
]
