"""Filters for large tables: nothing here reads a table for the values that it has."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from billing.conf import conf
from billing.models import LedgerEntry, PricePlan, Settlement
from streaming.admin.filters import ByRow, ByTenant, OneOf, WithRowFilters
from streaming.admin.tenancy import visible

__all__ = ["ByRow", "ByTenant", "OneOf", "WithRowFilters"]  # where the others look for them


class ByPeriod(ByRow):
    field_name = "period"


class BySink(ByRow):
    field_name = "sink"


class ByKind(OneOf):
    title = "kind"
    parameter_name = "kind"
    values = list(LedgerEntry.Kind.choices)


class BySettlementKind(OneOf):
    title = "why it was settled"
    parameter_name = "kind"
    values = list(Settlement.Kind.choices)


class ByCurrency(admin.SimpleListFilter):
    """The currencies that there are prices in."""

    title = "currency"
    parameter_name = "currency"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        plans = visible(request.user, PricePlan.objects.all(), "list__tenant_id")
        priced = plans.values_list("currency", flat=True).distinct()
        return [(one, one) for one in sorted({*priced, conf().billing_currency})]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(currency=self.value()) if self.value() else queryset


def whether(label: str, name: str, column: str, yes: str, no: str) -> type[admin.SimpleListFilter]:
    """A filter on a column of times: not empty (``yes``), or empty (``no``)."""

    class Whether(admin.SimpleListFilter):
        title = label
        parameter_name = name

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return [("yes", yes), ("no", no)]

        def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
            if self.value() is None:
                return queryset
            return queryset.filter(**{f"{column}__isnull": self.value() == "no"})

    return Whether
