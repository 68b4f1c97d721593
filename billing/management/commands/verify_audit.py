"""``manage.py verify_audit [--heads FILE…]``."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing.services import heads, verification


class Command(BaseCommand):
    help = (
        "Read the whole audit log, and every row whose hash is in it, and say whether anything was"
        " changed, removed or added. Exits with 1 if so."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--heads", nargs="+", type=Path, default=[], metavar="FILE",
            help="log files and export manifests, from outside of the database: what they have"
            " published must still be there",
        )  # fmt: skip

    def handle(self, **options: Any) -> None:
        verdict = verification.verify(self._published(options["heads"]))
        read = (
            f"{verdict.checked} audit entries, {verdict.witnessed} rows that they witness,"
            f" {verdict.published} published heads"
        )
        if verdict.ok:
            self.stdout.write(f"Nothing was changed, removed or added: {read}.")
            return
        for broken in verdict.broken:
            self.stdout.write(broken)
        if (more := verdict.found - len(verdict.broken)) > 0:
            self.stdout.write(f"and {more} more")
        raise CommandError(f"The audit log is broken in {verdict.found} places: {read}.")

    def _published(self, paths: list[Path]) -> list[heads.Head]:
        """The heads in these files. A file without any proves nothing, but the others do."""
        found: list[heads.Head] = []
        for path in paths:
            try:
                found.extend(heads.read(path))
            except OSError as exc:
                raise CommandError(str(exc)) from exc
            except ValueError as exc:
                self.stderr.write(self.style.WARNING(str(exc)))
        if paths and not found:
            raise CommandError("None of the files tells of an audit head.")
        return found
