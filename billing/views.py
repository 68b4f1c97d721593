"""Downloads and statements for finance: staff with the permission to export the ledger."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import wraps
from typing import Any
from uuid import UUID

from django.contrib.admin.views.decorators import staff_member_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.views.decorators.http import require_GET

from billing.errors import ExportFailed
from billing.exports import store
from billing.exports.formats import CONTENT_TYPES
from billing.exports.statement import statement
from billing.models import BillingPeriod, Export
from billing.services import audit
from streaming.admin.audited import actor_of
from streaming.admin.download import Download
from streaming.admin.tenancy import visible

PERMISSION = "billing.export_ledger"

View = Callable[..., HttpResponseBase]


def for_finance(view: View) -> View:
    """Staff who are not logged in are asked to; those without the permission get a 403."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.has_perm(PERMISSION):
            raise PermissionDenied
        response = view(request, *args, **kwargs)
        response["Cache-Control"] = "private, no-store"
        return response

    return require_GET(staff_member_required(guarded))


@for_finance
def export_file(request: HttpRequest, export_id: UUID, name: str) -> HttpResponseBase:
    """A file of a finished export, or its manifest. Only names that the export lists are looked for."""
    made = visible(request.user, Export.objects.filter(finished_at__isnull=False))
    export = get_object_or_404(made, pk=export_id)
    checksums = {file["name"]: file["sha256"] for file in export.manifest["files"]}
    if name not in checksums and name != store.MANIFEST:
        raise Http404("The export has no such file.")
    path = store.path_of(export.pk, name)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise Http404("The file is not on this machine, or not any more. Export again.") from None
    checksum = checksums.get(name) or hashlib.sha256(path.read_bytes()).hexdigest()
    audit.append(
        "export.downloaded",
        actor=actor_of(request),
        subject=f"export:{export.pk}",
        tenant_id=export.tenant_id,
        data={"file": name, "sha256": checksum},
    )
    response = Download(
        file,
        as_attachment=True,
        filename=name,
        content_type="application/json" if name == store.MANIFEST else CONTENT_TYPES[export.format],
    )
    response["ETag"] = f'"{checksum}"'
    digest = base64.b64encode(bytes.fromhex(checksum)).decode()
    response["Repr-Digest"] = f"sha-256=:{digest}:"  # RFC 9530
    return response


@for_finance
def statement_page(request: HttpRequest, period_id: int) -> HttpResponseBase:
    """A tenant's month, to be printed or saved: one page that refers to nothing outside of it."""
    periods = visible(request.user, BillingPeriod.objects.select_related("tenant"))
    period = get_object_or_404(periods, pk=period_id)
    try:
        figures = statement(period)
    except ExportFailed as error:
        return HttpResponse(str(error), content_type="text/plain; charset=utf-8", status=409)
    style = render_to_string("billing/statement.css")
    page = render_to_string("billing/statement.html", {**figures, "style": style})
    audit.append(
        "statement.viewed",
        actor=actor_of(request),
        subject=f"period:{period.pk}",
        tenant_id=period.tenant_id,
        data={"period": period.name, "sha256": figures["checksum"]},
    )
    response = HttpResponse(page)
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    response["Content-Security-Policy"] = (
        f"default-src 'none'; style-src 'sha256-{style_hash}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return response
