"""What billing's own pages have in common."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from billing.errors import BillingError
from streaming.admin.pages import WithPages
from streaming.services.refused import Refused

REFUSALS = (BillingError, Refused)
"""What services say no with, in words for whoever asked."""


class BillingPages(WithPages):
    """In billing's look."""

    class Media:
        css = {"all": ["billing/admin.css"]}


class SavedByService(BillingPages):
    """For tables whose ``save_model`` calls a service. Where that refuses nothing is saved, and the
    form is there again."""

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changeform_view(request, *args, **kwargs)
        except REFUSALS as refusal:  # what was written is rolled back by now
            tell_refusal(request, refusal)
            return HttpResponseRedirect(request.get_full_path())


def tell_refusal(request: HttpRequest, refusal: Exception) -> None:
    """Show why it was not done."""
    messages.error(request, str(refusal))
