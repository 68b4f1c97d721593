"""The page on which staff set their second factor up, show it, and have it replaced."""

from __future__ import annotations

import base64
from typing import Any

import django_otp
import segno
from django import forms
from django.contrib import admin, messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString, mark_safe
from django_otp.plugins.otp_totp.models import TOTPDevice

from gateway_project.second_factor import devices
from gateway_project.second_factor.gate import PAGE
from streaming.services.refused import Refused


class TokenForm(forms.Form):
    """A token of the app, or a backup code."""

    token = forms.CharField(label="Code", max_length=20)


class SecondFactorPage:
    """One page: what it shows and takes depends on how far somebody has come.

    * With an authenticator that was not shown in this session: asks for a code.
    * Without one: sets one up, by a picture and a first token.
    * Else: makes new backup codes, and removes or replaces the authenticator, for a code.
    """

    def __init__(self, site: admin.AdminSite) -> None:
        self.site = site

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if devices.mode() == devices.OFF:
            raise Http404("there is no second factor here")
        user: Any = request.user
        form = TokenForm(request.POST or None)
        asked = request.POST.get("do", "")
        if request.method == "POST":
            try:
                if answer := self._do(request, asked, form):
                    return answer
            except Refused as refusal:
                form.add_error("token", str(refusal))
        enrolled = devices.is_enrolled(user)
        return self._page(
            request,
            form=form,
            failed=asked,
            to_verify=enrolled and not devices.has_shown(request),
            enrolled=enrolled,
            begun=_shown(device) if (device := devices.begun(user)) is not None else None,
            left=devices.codes_left(user),
        )

    def _do(self, request: HttpRequest, asked: str, form: TokenForm) -> HttpResponse | None:
        user: Any = request.user
        to_verify = devices.is_enrolled(user) and not devices.has_shown(request)
        if asked == "begin" and not to_verify:
            devices.begin(user)
            return HttpResponseRedirect(request.get_full_path())
        if asked == "leave":
            devices.leave(user)
            return HttpResponseRedirect(request.get_full_path())
        if not form.is_valid():
            return None
        token = form.cleaned_data["token"]
        if asked == "confirm" and not to_verify:
            device, codes = devices.confirm(user, token)
            self._passed(request, device)
            return self._page(request, codes=codes)
        if asked not in ("verify", "codes", "remove"):
            return None
        device = devices.verify(user, token)
        if asked == "codes":
            return self._page(request, codes=devices.new_codes(user))
        if asked == "remove":
            devices.remove(user)
            messages.success(request, "Removed: your password alone lets you in.")
            return HttpResponseRedirect(reverse(f"admin:{PAGE}"))
        self._passed(request, device)
        return HttpResponseRedirect(self._next(request))

    def _passed(self, request: HttpRequest, device: Any) -> None:
        request.session.cycle_key()
        django_otp.login(request, device)

    def _next(self, request: HttpRequest) -> str:
        wanted = request.GET.get("next", "")
        ours = url_has_allowed_host_and_scheme(
            wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
        )
        return wanted if ours else reverse("admin:index")

    def _page(self, request: HttpRequest, **context: Any) -> TemplateResponse:
        return TemplateResponse(
            request,
            "admin/second_factor.html",
            {
                **self.site.each_context(request),
                "title": "Second factor",
                "next": self._next(request),
                "required": devices.mode() == devices.REQUIRED,
                **context,
            },
        )


def _shown(device: TOTPDevice) -> dict[str, Any]:
    """A picture for the app's camera, and the same for typing."""
    secret = base64.b32encode(device.bin_key).decode().rstrip("=")
    return {
        "picture": picture(device.config_url),
        "secret": " ".join(secret[i : i + 4] for i in range(0, len(secret), 4)),
    }


def picture(text: str) -> SafeString:
    """A QR code as SVG: dark on light in dark mode too, or cameras don't see it; without styles."""
    code = segno.make(text, error="m", micro=False)
    return mark_safe(
        code.svg_inline(scale=4, dark="#000", light="#fff", svgclass="unbroken-qr", lineclass=None)
    )
