"""Making an export: the files, the manifest beside them, the row that remembers it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing.core.months import NAME
from billing.errors import BillingError, ExportFailed, ExportRefused
from billing.exports import store
from billing.exports.formats import Part, known, writer_of
from billing.exports.manifest import Count, describe
from billing.exports.rows import Source
from billing.models import BillingPeriod, Export
from billing.services import audit, heads
from streaming.models import Tenant

Progress = Callable[[int, int], None]
"""Called with the rows written so far and about how many there are."""


def export(
    *,
    period_name: str,
    tenant_id: int | None = None,
    format: str,
    actor: str,
    progress: Progress | None = None,
) -> Export:
    """Write the lines of a month (2026-11) in ``format``, of one tenant or of all.

    Takes minutes for a million lines; not to be called in a transaction. Raises ``ExportRefused`` for
    what does not exist, and ``ExportFailed`` when it could not be written or does not come to the
    totals of a closed period; ``Export.error`` keeps that one.
    """
    return make(
        request(period_name=period_name, tenant_id=tenant_id, format=format, actor=actor), progress
    )


def request(*, period_name: str, tenant_id: int | None = None, format: str, actor: str) -> Export:
    """Note that somebody wants an export; :func:`make` makes it, maybe elsewhere.

    Raises ``ExportRefused``.
    """
    known(format)
    if not NAME.fullmatch(period_name):
        raise ExportRefused(f"{period_name!r} is no month; write it like 2026-11.")
    _periods(period_name, tenant_id)
    return Export.objects.create(
        period_name=period_name, tenant_id=tenant_id, format=format, requested_by=actor
    )


def make(export: Export, progress: Progress | None = None) -> Export:
    """Make an export that was requested, once; again if that broke off. Raises as :func:`export`.

    Something for a task: in a gateway process it takes the time of the streams.
    """
    if export.finished_at is not None or store.is_being_made(export.pk):
        return export
    try:
        _note_broken_off()
        periods = _periods(export.period_name, export.tenant_id)
        with store.unfinished(export.pk) as directory:
            count, parts = _write(export, periods, directory, progress)
            count.verify(periods)
            _finish(export, periods, count, parts, directory)
    except OSError as error:
        _note(export, store.in_words(error))
        raise ExportFailed(store.in_words(error)) from error
    except BaseException as error:
        _note(export, str(error) if isinstance(error, BillingError) else f"Broke off: {error!r}")
        raise
    return export


def _periods(name: str, tenant_id: int | None) -> list[BillingPeriod]:
    periods = BillingPeriod.objects.filter(name=name).select_related("tenant")
    if tenant_id is not None:
        periods = periods.filter(tenant_id=tenant_id)
    found = list(periods.order_by("tenant__name").prefetch_related("totals"))
    if not found:
        whose = "anybody" if tenant_id is None else Tenant.objects.get(pk=tenant_id).name
        raise ExportRefused(f"Nothing was booked for {whose} in {name}: there is no such period.")
    return found


def _write(
    export: Export, periods: Sequence[BillingPeriod], directory: Path, progress: Progress | None
) -> tuple[Count, list[Part]]:
    source, count = Source(periods), Count()
    expected = source.count() if progress else 0
    with writer_of(export.format)(directory, _stem(export)) as writer:
        for rows in source.batches():
            writer.write(rows)
            count.add(rows)
            if progress:
                progress(count.all.lines, expected)
    return count, writer.parts


def _stem(export: Export) -> str:
    """Like focus-2026-11-acme. Names of tenants are no paths; should one be, its number is taken."""
    tenant = export.tenant
    whose = "all" if tenant is None else tenant.name
    if tenant is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", tenant.name):
        whose = str(tenant.pk)
    return f"{'focus' if export.format == 'focus' else 'ledger'}-{export.period_name}-{whose}"


def _finish(
    export: Export,
    periods: Sequence[BillingPeriod],
    count: Count,
    parts: Sequence[Part],
    directory: Path,
) -> None:
    files = [
        {
            "name": part.path.name,
            "rows": part.rows,
            "bytes": part.path.stat().st_size,
            "sha256": store.seal(part.path),
        }
        for part in parts
    ]
    now = timezone.now()
    manifest = describe(
        export, periods, count, files, audit_head=heads.publish().for_manifest(), at=now
    )
    path = directory / store.MANIFEST
    path.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    export.rows, export.manifest, export.finished_at = count.all.lines, manifest, now
    export.error = ""
    published = False
    try:
        with transaction.atomic(durable=True):
            export.save(update_fields=["rows", "manifest", "finished_at", "error"])
            audit.append(
                "export.made",
                actor=export.requested_by,
                subject=f"export:{export.pk}",
                tenant_id=export.tenant_id,
                data={
                    "period": export.period_name,
                    "format": export.format,
                    "closed": manifest["closed"],
                    "rows": export.rows,
                    "amounts": manifest["amounts"],
                    "files": {file["name"]: file["sha256"] for file in files},
                    "manifest_sha256": store.seal(path),
                },
            )
            store.publish(directory, export.pk)
            published = True
    except (
        BaseException
    ):  # whatever stopped it: what is not committed must not lie there as finished
        export.finished_at = None
        if published:
            store.withdraw(export.pk)
        raise


def _note(export: Export, error: str) -> None:
    export.error = error[:300]
    Export.objects.filter(pk=export.pk).update(error=export.error, rows=0, finished_at=None)


def _note_broken_off() -> None:
    """Clear up after processes that were killed in the middle of an export."""
    for export_id in store.sweep():
        _broke_off(export_id)
    for export in Export.objects.filter(finished_at=None, error=""):
        published = store.root() / str(export.pk)
        # Killed between the new name and the commit. Who is just there holds the directory until
        # after the commit.
        if published.exists() and not store.held(published) and _broke_off(export.pk):
            store.withdraw(export.pk)


def _broke_off(export_id: UUID) -> bool:
    return bool(
        Export.objects.filter(pk=export_id, finished_at=None, error="").update(
            error="Broke off: the process was killed. Nothing of it was kept."
        )
    )
