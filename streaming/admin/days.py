"""The date hierarchy of a large table, without reading it: each day is asked for one of its rows."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.db.models import Max, Min, QuerySet
from django.utils import timezone

MOST = 60
"""Days or months that are asked for; more years than that nobody has."""


class SparseDates(QuerySet[Any]):
    """Answers ``datetimes``, which Django's date hierarchy asks for, by an index on the column."""

    def datetimes(  # type: ignore[override]
        self, field_name: str, kind: str, order: str = "ASC", tzinfo: Any = None
    ) -> list[datetime]:
        """The years, months or days with rows, as Django has them; two queries."""
        rows = self.order_by().select_related(None)
        span = rows.aggregate(first=Min(field_name), last=Max(field_name))
        if span["first"] is None:
            return []
        begins = _begins(span["first"], span["last"], kind)
        asked: list[QuerySet[Any]] = [
            QuerySet(self.model, self.query.clone(), self.db)
            .order_by(field_name)
            .select_related(None)
            .filter(**{f"{field_name}__gte": begin, f"{field_name}__lt": end})
            .values_list(field_name)[:1]
            for begin, end in pairwise(begins)
        ]
        found = asked[0].union(*asked[1:], all=True) if len(asked) > 1 else asked[0]
        seen = {_begin(at, kind) for (at,) in found}
        return sorted(seen, reverse=order != "ASC")


def _begin(at: datetime, kind: str) -> datetime:
    """Of the day, month or year in which it lies, in the viewer's zone."""
    local = timezone.localtime(at)
    months = {"year": 1, "month": local.month, "day": local.month}
    day = local.day if kind == "day" else 1
    naive = datetime(local.year, months[kind], day)  # noqa: DTZ001  (the zone comes next)
    return timezone.make_aware(naive)


def _begins(first: datetime, last: datetime, kind: str) -> list[datetime]:
    """Those from the first row's to the one after the last row's."""
    begins = [_begin(first, kind)]
    longest = {"year": 366, "month": 31, "day": 1}[kind]
    while begins[-1] <= last and len(begins) <= MOST:
        # Past the end of the longest one, and back to the beginning of where that is.
        begins.append(_begin(begins[-1] + timedelta(days=longest, hours=2), kind))
    return begins
