"""The time zone that a member of staff reads times in.

The browser says its zone by a cookie (``streaming/desk/zone.js``). Who wants another one chooses it
once; that is a cookie as well. What is no zone is passed over, and without any it is UTC.
"""

from __future__ import annotations

import zoneinfo
from functools import cache

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin
from django.utils.http import url_has_allowed_host_and_scheme

from streaming.admin.tenancy import scopes_itself

BROWSER_COOKIE = "browser_zone"
CHOSEN_COOKIE = "chosen_zone"
CHOSEN_SECONDS = 400 * 24 * 3600  # as long as browsers keep any cookie


class StaffTimeZone(MiddlewareMixin):
    """Has the pages of the admin shown in the viewer's zone; everything else stays in UTC."""

    def process_request(self, request: HttpRequest) -> None:
        if request.path_info.startswith("/admin/"):
            timezone.activate(zoneinfo.ZoneInfo(zone_of(request)))

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        timezone.deactivate()
        return response


def zone_of(request: HttpRequest) -> str:
    """The chosen zone, else the browser's, else UTC."""
    for cookie in (CHOSEN_COOKIE, BROWSER_COOKIE):
        name = request.COOKIES.get(cookie, "").replace("%2F", "/")
        if name in _zones():
            return name
    return "UTC"


@cache
def _zones() -> frozenset[str]:
    """Those of the tz database that people would choose: no files of the system, no offsets."""
    return frozenset(zoneinfo.available_timezones() - {"localtime", "posixrules", "Factory"})


class ZoneForm(forms.Form):
    """Empty: as the browser says."""

    zone = forms.ChoiceField(label="Time zone", required=False)

    def __init__(self, *args: object, browser: str, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        mine = f"as my browser says ({browser})" if browser else "as my browser says"
        others = sorted(_zones() - {"UTC"})
        choices = [("", mine), ("UTC", "UTC"), *((name, name) for name in others)]
        self.fields["zone"].choices = choices  # type: ignore[attr-defined]


@scopes_itself
def choose(request: HttpRequest) -> HttpResponse:
    """The page where staff choose their zone; back to where they came from."""
    target = request.POST.get("next") or request.GET.get("next") or ""
    if not url_has_allowed_host_and_scheme(target, allowed_hosts={request.get_host()}):
        target = reverse("admin:index")
    browser = request.COOKIES.get(BROWSER_COOKIE, "").replace("%2F", "/")
    form = ZoneForm(
        request.POST or None,
        browser=browser if browser in _zones() else "",
        initial={"zone": request.COOKIES.get(CHOSEN_COOKIE, "")},
    )
    if request.method == "POST" and form.is_valid():
        response = HttpResponseRedirect(target)
        if zone := form.cleaned_data["zone"]:
            response.set_cookie(
                CHOSEN_COOKIE, zone, max_age=CHOSEN_SECONDS, path="/admin/", samesite="Lax",
                secure=request.is_secure(), httponly=True,
            )  # fmt: skip
        else:
            response.delete_cookie(CHOSEN_COOKIE, path="/admin/", samesite="Lax")
        return response
    context = {
        **admin.site.each_context(request),
        "title": "Time zone",
        "form": form,
        "next": target,
    }
    return TemplateResponse(request, "admin/time_zone.html", context)
