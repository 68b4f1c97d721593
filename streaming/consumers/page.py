"""The web page behind a request, as far as its browser tells.

Consumers are reached past Django's middleware: what that does for views, against foreign pages, is
done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.cookie import parse_cookie
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.http import is_same_domain

from streaming.core.embedding import PREFIX, TOKEN_COOKIE
from streaming.errors import CsrfFailed, OriginNotAllowed


class PageRequest(HttpRequest):
    """A request as Django would see it, as far as method, headers, host and cookies go."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        super().__init__()
        self.method = scope.get("method", "GET")
        self.path = self.path_info = scope["path"]
        self._is_secure = scope.get("scheme") in ("wss", "https")
        self.origins: list[str] = []
        for name, value in scope["headers"]:
            if name == b"origin":
                self.origins.append(value.decode("latin-1"))
            self.META[f"HTTP_{name.decode('latin-1').upper().replace('-', '_')}"] = value.decode(
                "latin-1"
            )
        client = scope.get("client")
        self.META["REMOTE_ADDR"] = client[0] if client else ""
        self.COOKIES = parse_cookie(self.META.get("HTTP_COOKIE", ""))

    def _get_scheme(self) -> str:
        return "https" if self._is_secure else "http"

    def is_of_our_own_pages(self) -> bool:
        """Whether a page of this host has opened it, or one of CSRF_TRUSTED_ORIGINS.

        Browsers send cookies along whoever opens a socket, and ask nobody.
        """
        return self.is_of_this_host() or (len(self.origins) == 1 and _is_trusted(self.origins[0]))

    def is_of_this_host(self) -> bool:
        if len(self.origins) != 1:
            return False
        try:
            host = self.get_host()
        except DisallowedHost:
            return False
        return self.origins[0] == f"{self.scheme}://{host}"


class Page:
    """Which page's script sent a request. Servers and apps send no ``Origin``, and are none."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._scope = scope
        self._values: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            if name in (b"origin", b"sec-fetch-site", b"cookie"):
                self._values.setdefault(name, []).append(value.decode("latin-1"))

    def __repr__(self) -> str:
        return f"<Page of {self.origin!r}{', our own' if self.is_own else ''}>"

    @property
    def origin(self) -> str | None:
        """As it was sent; None where there is none. Several are no origin that anybody allows."""
        origins = self._values.get(b"origin")
        return None if origins is None else ", ".join(origins)

    @cached_property
    def is_own(self) -> bool:
        """Whether it is a page of this gateway's own address, or of CSRF_TRUSTED_ORIGINS."""
        if self._says_same_origin:
            return True
        return b"origin" in self._values and self._as_django.is_of_our_own_pages()

    @property
    def is_foreign(self) -> bool:
        """Whether a page of another origin asks."""
        return self.origin is not None and not self.is_own

    @cached_property
    def token_cookie(self) -> str:
        """The embed token in the cookie of first-party pages; empty where there is none."""
        if b"cookie" not in self._values:
            return ""
        token = self._as_django.COOKIES.get(TOKEN_COOKIE, "")
        return token if token.startswith(PREFIX) else ""

    def check_first_party(self) -> None:
        """What a request needs that comes with a cookie: our own page, and its CSRF token.

        The token is asked for as Django does, in ``X-CSRFToken`` for methods that change something.
        Raises ``OriginNotAllowed``, ``CsrfFailed``.
        """
        if b"sec-fetch-site" in self._values:
            is_same = self._says_same_origin
        else:  # browsers of old, and pages without TLS
            is_same = self._as_django.is_of_this_host()
        if not is_same:
            raise OriginNotAllowed("A cookie is good on pages of this gateway only.")
        request = self._as_django
        check = _CsrfCheck(_no_view)
        check.process_request(request)
        if reason := check.process_view(request, _no_view, (), {}):
            raise CsrfFailed(f"A request with a cookie needs the page's CSRF token: {reason}")

    @property
    def _says_same_origin(self) -> bool:
        """No script can set or change this header, and no proxy spoils it."""
        return self._values.get(b"sec-fetch-site") == ["same-origin"]

    @cached_property
    def _as_django(self) -> PageRequest:
        return PageRequest(self._scope)


class _CsrfCheck(CsrfViewMiddleware):
    """Django's own check, giving the reason instead of a page that tells it."""

    def _reject(self, request: HttpRequest, reason: str) -> Any:
        return reason


def _no_view(request: HttpRequest) -> Any:
    raise AssertionError("the check alone is run")


def _is_trusted(origin: str) -> bool:
    """As Django's own protection against foreign forms takes CSRF_TRUSTED_ORIGINS."""
    if origin in settings.CSRF_TRUSTED_ORIGINS:
        return True
    try:
        asked = urlsplit(origin)
    except ValueError:
        return False
    return any(
        asked.scheme == trusted.scheme and is_same_domain(asked.netloc, trusted.netloc.lstrip("*"))
        for trusted in map(urlsplit, settings.CSRF_TRUSTED_ORIGINS)
        if trusted.netloc.startswith("*")
    )
