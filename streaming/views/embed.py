"""The page that product pages show in an iframe: the widget, and who may frame it."""

from __future__ import annotations

from datetime import UTC, datetime

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.cache import never_cache
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.http import require_safe

from streaming.core.embedding import TOKEN_COOKIE
from streaming.models import Tenant

# Everything comes from this server, and nothing is inline.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors {}"
)


@require_safe
@never_cache
@xframe_options_exempt  # which knows no list: frame-ancestors stands in its place
def page(request: HttpRequest, tenant: str) -> HttpResponse:
    """The chat of a tenant, for its allowed origins to frame. The token comes by ``postMessage``."""
    origins: list[str] = get_object_or_404(Tenant, name=tenant).allowed_origins
    told = {"parents": " ".join(origins), "tenant": tenant}
    response = render(request, "streaming/embed.html", told)
    ancestors = " ".join(["'self'", *origins]) if origins else "'none'"
    response["Content-Security-Policy"] = CONTENT_SECURITY_POLICY.format(ancestors)
    # Where it is framed its own address tells nothing; where it asks, the gateway wants to know.
    response["Referrer-Policy"] = "same-origin"
    return response


def set_token_cookie(response: HttpResponse, token: str, expires_at: datetime) -> None:
    """Give a first-party page an embed token that its scripts cannot read.

    Requests with it need the page's CSRF token (``django.middleware.csrf.get_token``), see
    ``docs/security.md``. It is sent to the gateway's own pages only.
    """
    response.set_cookie(
        TOKEN_COOKIE,
        token,
        max_age=max(0, int((expires_at - datetime.now(UTC)).total_seconds())),
        httponly=True,
        samesite="Strict",
        secure=settings.SESSION_COOKIE_SECURE,
    )
