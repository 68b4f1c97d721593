"""Who is at the other end of a socket of the admin."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.contrib.auth import get_user

from streaming.consumers.page import PageRequest
from streaming.ports import ports


class Handshake(PageRequest):
    """The request that opens a socket, as far as cookies, host, session and user go."""

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
