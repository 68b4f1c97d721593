"""Filters for large tables: nothing here reads a table for the values that it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.widgets import AutocompleteSelect
from django.db.models import QuerySet
from django.http import HttpRequest


class ByRow(admin.ListFilter):
    """The rows that belong to one row of another table, which is found by typing.

    ``field_name``: the foreign key, of the listed table or of ``through``.
    """

    template = "admin/streaming/filter_by_row.html"
    field_name: ClassVar[str]

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any
    ) -> None:
        self.title = self.field_name.replace("_", " ")
        super().__init__(request, params, model, model_admin)
        given = params.pop(self.field_name, None)
        if given is not None:
            self.used_parameters[self.field_name] = given[-1]
        self.form = row_form(model, self.field_name, model_admin.admin_site, request)(
            initial={self.field_name: self.value()}, auto_id=f"filter_{self.field_name}_%s"
        )

    def value(self) -> str:
        return str(self.used_parameters.get(self.field_name, ""))

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return [self.field_name]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.value():
            return queryset
        try:
            return queryset.filter(**{f"{self.field_name}_id": int(self.value())})
        except ValueError as exc:
            raise IncorrectLookupParameters(str(exc)) from exc

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        others = {
            name: value
            for name, value in changelist.get_filters_params().items()
            if name != self.field_name
        }
        yield {
            "field": self.form[self.field_name],
            "others": [(name, one) for name, many in others.items() for one in many],
            "query": changelist.query,
            "chosen": bool(self.value()),
            "clear": changelist.get_query_string(remove=[self.field_name]),
        }


def row_form(
    model: Any, field_name: str, site: admin.AdminSite, request: HttpRequest | None = None
) -> type[forms.Form]:
    """A form with one field: a row of the table that the foreign key leads to, found by typing.

    Only rows that who has sent ``request`` sees; without a request none.
    """
    key = model._meta.get_field(field_name)
    rows = key.related_model._default_manager.none()
    field = forms.ModelChoiceField(
        queryset=rows
        if request is None
        else site._registry[key.related_model].get_queryset(request),
        required=False,
        label=key.verbose_name.capitalize(),
        widget=AutocompleteSelect(key, site, attrs={"style": "width: 100%"}),
    )
    return type("RowForm", (forms.Form,), {field_name: field})


class ByTenant(ByRow):
    field_name = "tenant"


class WithRowFilters(admin.ModelAdmin):
    """For lists with a ``ByRow``: what its field needs of scripts."""

    @property
    def media(self) -> forms.Media:
        for one in self.list_filter:
            if isinstance(one, type) and issubclass(one, ByRow):
                form = row_form(self.model, one.field_name, self.admin_site)()
                return super().media + form.media
        return super().media


class OneOf(admin.SimpleListFilter):
    """The rows with one value of a column, of those that the column can have."""

    values: ClassVar[list[tuple[str, str]]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return self.values

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(**{str(self.parameter_name): value}) if value else queryset
