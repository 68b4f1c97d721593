"""Downloads and statements, for staff."""

from __future__ import annotations

from django.urls import URLPattern, path

from billing import views

app_name = "billing"
urlpatterns: list[URLPattern] = [
    path("exports/<uuid:export_id>/<str:name>", views.export_file, name="export-file"),
    path("statements/<int:period_id>/", views.statement_page, name="statement"),
]
