"""What Django itself answers; the streaming routes are in ``streaming.routing``."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("billing/", include("billing.urls")),
    path("", include("streaming.urls")),
]
