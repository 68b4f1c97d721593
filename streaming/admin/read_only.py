"""What all tables that gateways write have in common: to be read, and large."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import connection
from django.http import HttpRequest
from django.utils.functional import cached_property

EXACT_UP_TO = 100_000


class ReadOnly:
    """No adding, changing or deleting; for model admins and inlines."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class EstimatingPaginator(Paginator):
    """Takes PostgreSQL's own estimate for the size of a whole large table: counting takes seconds."""

    @cached_property
    def count(self) -> int:
        query = self.object_list.query  # type: ignore[attr-defined]
        if query.where:
            return super().count
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)",
                [query.model._meta.db_table],
            )
            row = cursor.fetchone()
        return row[0] if row and row[0] > EXACT_UP_TO else super().count


class ReadOnlyAdmin(ReadOnly, admin.ModelAdmin):
    """A large table: no second count, newest first, a page that stays short."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = EstimatingPaginator
    ordering = ["-pk"]
    list_per_page = 50
    actions = None
