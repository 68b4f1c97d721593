"""What all tables that gateways write have in common: to be read, and large."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import connection
from django.db.models import QuerySet
from django.forms.models import BaseInlineFormSet
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


LATEST = 50


class LatestRows(BaseInlineFormSet):
    """The first ``LATEST`` rows of the inline's order: an object may have thousands."""

    _latest: QuerySet[Any] | None = None

    def get_queryset(self) -> QuerySet[Any]:
        if self._latest is None:
            self._latest = super().get_queryset()[:LATEST]
        return self._latest


class ReadOnlyInline(ReadOnly, admin.TabularInline):
    extra = 0
    formset = LatestRows
    can_delete = False


class EstimatingPaginator(Paginator):
    """Takes PostgreSQL's own estimate where there are many rows: counting them takes seconds.

    Of a whole table it is in the catalogue, of a filtered one in the plan of the query.
    """

    exact_up_to = EXACT_UP_TO

    @cached_property
    def count(self) -> int:
        query = self.object_list.query  # type: ignore[attr-defined]
        estimate = self._planned() if query.where else _rows_of(query.model._meta.db_table)
        return estimate if estimate > self.exact_up_to else super().count

    def _planned(self) -> int:
        rows: QuerySet[Any] = self.object_list  # type: ignore[assignment]
        plan: str = rows.order_by().values("pk").explain(format="json")
        # Without a plan: nothing can match, and Django asks nobody.
        return int(json.loads(plan)[0]["Plan"]["Plan Rows"]) if plan else 0


def _rows_of(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)", [table]
        )
        row = cursor.fetchone()
    return row[0] if row else 0


class ReadOnlyAdmin(ReadOnly, admin.ModelAdmin):
    """A large table: no second count, newest first, a page that stays short."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = EstimatingPaginator
    ordering = ["-pk"]
    list_per_page = 50
    actions: Any = None
