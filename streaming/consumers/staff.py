"""Who is at the other end of a socket of the admin.

Consumers are reached past Django's middleware: what that does for the admin's pages is done here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib import admin
from django.contrib.auth import get_user
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.cookie import parse_cookie
from django.utils.http import is_same_domain

from streaming.ports import ports


class Handshake(HttpRequest):
    """The request that opens a socket, as far as cookies, host, session and user go."""

    def __init__(self, scope: dict[str, Any]) -> None:
        super().__init__()
        self.method = "GET"
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
        if len(self.origins) != 1:
            return False
        (origin,) = self.origins
        try:
            host = self.get_host()
        except DisallowedHost:
            return False
        return origin == f"{self.scheme}://{host}" or _is_trusted(origin)

    def staff(self) -> Any:
        """The user who is logged in, None for who may not enter the admin. Reads the database.

        Anew each time: who has logged out, changed the password or left the staff is None.
        """
        store = import_module(settings.SESSION_ENGINE).SessionStore
        self.session = store(self.COOKIES.get(settings.SESSION_COOKIE_NAME))
        self.user = get_user(self)
        if not admin.site.has_permission(self) or not ports.is_verified(self):
            return None
        return self.user


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
