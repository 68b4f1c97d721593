"""What Django itself answers; the streaming routes are in ``streaming.routing``."""

from django.contrib import admin
from django.urls import include, path

from gateway_project import time_zone

urlpatterns = [
    # Before the admin's own, which answer everything below their prefix.
    path("admin/time-zone/", admin.site.admin_view(time_zone.choose), name="time-zone"),
    path("admin/", include("streaming.admin.urls")),
    path("admin/", admin.site.urls),
    path("billing/", include("billing.urls")),
    path("", include("streaming.urls")),
]
