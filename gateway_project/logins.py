"""Logins that were refused leave a line in the log, for what counts them outside."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib.auth.signals import user_login_failed
from django.dispatch import receiver
from django.http import HttpRequest

logger = logging.getLogger(__name__)


@receiver(user_login_failed)
def note_refused(sender: Any, request: HttpRequest | None = None, **_: Any) -> None:
    """Without the name that was typed: people type their password there."""
    peer = request.META.get("REMOTE_ADDR", "") if request is not None else ""
    logger.warning("a login was refused", extra={"peer": peer or "unknown"})
