"""``manage.py export_billing``: the ledger of a month, as files."""

from __future__ import annotations

import os
import shutil
import sys
from argparse import ArgumentParser
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from billing.errors import BillingError
from billing.exports import store
from billing.exports.formats import FORMATS
from billing.exports.run import export
from billing.models import Export
from streaming.management.operator import operator_name
from streaming.models import Tenant


class Command(BaseCommand):
    help = (
        "Export the ledger of a month. Prints the files with their SHA-256, as sha256sum does; "
        "the manifest beside them says what they hold."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--period", required=True, metavar="2026-11")
        parser.add_argument("--tenant", metavar="NAME", help="only this tenant's lines")
        parser.add_argument("--format", required=True, choices=FORMATS)
        parser.add_argument(
            "--output", type=Path, metavar="DIR", help="copy the files there, too"
        )  # fmt: skip

    def handle(self, **options: Any) -> None:
        tenant_id = _tenant_id(options["tenant"]) if options["tenant"] else None
        try:
            if options["output"]:
                options["output"].mkdir(parents=True, exist_ok=True)
            with _Bar() as bar:
                made = export(
                    period_name=options["period"],
                    tenant_id=tenant_id,
                    format=options["format"],
                    actor=operator_name(),
                    progress=bar.show if bar.visible else None,
                )
            paths = _files(made)
            if options["output"]:
                paths = _copy(paths, options["output"])
        except BillingError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"{options['output']}: {error.strerror or error}") from error
        checksums = [file["sha256"] for file in made.manifest["files"]]
        for path, checksum in zip(paths, checksums, strict=False):
            self.stdout.write(f"{checksum}  {path}")
        self.stderr.write(_summary(made, paths[-1]))


class _Bar:
    """A progress bar, where there is somebody to see it."""

    def __init__(self) -> None:
        self.visible = sys.stderr.isatty()
        self._bar: Any = None

    def show(self, done: int, expected: int) -> None:
        if self._bar is None:
            self._bar = tqdm(total=expected, unit=" lines", unit_scale=True, file=sys.stderr)
        self._bar.update(done - self._bar.n)
        if done >= expected:
            self._bar.close()  # what is logged from here on has a line of its own

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def _tenant_id(name: str) -> int:
    known = Tenant.objects.filter(name=name).values_list("pk", flat=True).first()
    if known is None:
        raise CommandError(f"There is no tenant {name!r}.")
    return known


def _files(made: Export) -> list[Path]:
    """The data files, then the manifest."""
    names = [*(file["name"] for file in made.manifest["files"]), store.MANIFEST]
    return [store.path_of(made.pk, name) for name in names]


def _copy(paths: list[Path], directory: Path) -> list[Path]:
    """Each file appears there whole. The manifest gets the name of the (first) file before its own, to
    lie beside those of other exports, in other formats too."""
    copies = []
    for path in paths:
        name = f"{paths[0].name}.{path.name}" if path.name == store.MANIFEST else path.name
        partial = directory / f".{name}.partial"
        try:
            shutil.copyfile(path, partial)
            os.replace(partial, directory / name)
        finally:
            partial.unlink(missing_ok=True)
        copies.append(directory / name)
    return copies


def _summary(made: Export, manifest: Path) -> str:
    sums = ", ".join(f"{amount} {code}" for code, amount in made.manifest["amounts"].items())
    state = "" if made.manifest["closed"] else " The period is open: there will be more."
    return f"{made.rows} lines, {sums or 'no amounts'}. {manifest}{state}"
