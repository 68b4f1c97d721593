"""Query strings, as the database can compare them."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.deprecation import MiddlewareMixin


class WithoutNul(MiddlewareMixin):
    """PostgreSQL's text has no NUL, and an error for who compares some with it.

    So in queries it becomes U+FFFD, as in what is stored: every filter and search then finds nothing,
    whichever it is.
    """

    def process_request(self, request: HttpRequest) -> None:
        query = request.META.get("QUERY_STRING", "")
        if "%00" in query:
            request.META["QUERY_STRING"] = query.replace("%00", "%EF%BF%BD")
