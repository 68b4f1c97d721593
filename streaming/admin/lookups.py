"""What the address of a list may ask of its rows: what the list itself offers, and nothing else.

Django lets addresses filter by any column of the table, shown or not. Who may see that there is a row
could so find out what is in its hidden columns, a letter at a time, and nobody would know.
"""

from __future__ import annotations

from datetime import date
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

_OF_A_FIELD = frozenset({"", "exact", "isnull", "isempty", "id__exact", "pk__exact"})
_OF_DAYS = ("year", "month", "day")
_YEARS = range(1970, 9999)
"""Beyond them PostgreSQL's dates and Python's do not agree any more."""


class OfferedLookups(admin.ModelAdmin):
    """Takes the parameters of its ``list_filter`` and of its ``date_hierarchy``."""

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        name, _, rest = lookup.partition("__")
        if self.date_hierarchy and name == self.date_hierarchy and rest in _OF_DAYS:
            return _is_a_time(request, name)
        for offered in self.get_list_filter(request):
            # By what the two kinds of filters that are classes call it.
            parameter = getattr(offered, "parameter_name", getattr(offered, "field_name", None))
            if parameter is not None:
                if lookup == parameter:
                    return True
                continue
            field = offered[0] if isinstance(offered, (list, tuple)) else offered
            if name == field and rest in _OF_A_FIELD:
                return True
        return False


def _is_a_time(request: HttpRequest, name: str) -> bool:
    """Whether what an address says of ``name`` is a year, a month or a day."""
    year, month, day = (request.GET.get(f"{name}__{part}") for part in _OF_DAYS)
    try:
        return date(int(year or 2000), int(month or 1), int(day or 1)).year in _YEARS
    except ValueError:
        return False
