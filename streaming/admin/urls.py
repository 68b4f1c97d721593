"""Pages of the desk that belong to no table."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, path

from streaming.admin import live

app_name = "desk"
urlpatterns: list[URLPattern] = [
    path("live/", admin.site.admin_view(live.page), name="live"),
    path("live/data", admin.site.admin_view(live.data), name="live-data"),
]
