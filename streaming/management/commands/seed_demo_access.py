"""``manage.py seed_demo_access``: what a visitor of the demo needs. ``serve --demo`` runs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.utils import timezone

from streaming.management.operator import operator_name
from streaming.models import ApiKey
from streaming.services.aliases import list_aliases, set_alias
from streaming.services.api_keys import create_api_key, key_hash
from streaming.services.demo_tokens import DEMO_TENANT

ALIAS = "chat-default"
MODEL = "smollm2-135m-instruct"


class Command(BaseCommand):
    help = "Create the demo tenant, its model alias and a test key (kept in DATA_DIR/demo_api_key)."

    def handle(self, **options: Any) -> None:
        path: Path = settings.DATA_DIR / "demo_api_key"
        secret = _stored_key(path)
        if secret is None:
            _, secret = create_api_key(
                tenant_name=DEMO_TENANT, name="demo", is_test=True, by=operator_name()
            )
            _store(path, secret)
        if (
            not list_aliases().filter(alias=ALIAS, tenant=None).exists()
        ):  # else it is the operator's
            set_alias(alias=ALIAS, model=MODEL, by=operator_name())
        self.stdout.write(f"{'api key':<10} {secret}  model {ALIAS}")


def _stored_key(path: Path) -> str | None:
    """The key of an earlier run, unless this database does not know it or it has ended."""
    try:
        secret = path.read_text().strip()
    except FileNotFoundError:
        return None
    key = ApiKey.objects.filter(tenant__name=DEMO_TENANT, key_hash=key_hash(secret)).first()
    return secret if key is not None and key.is_active(timezone.now()) else None


def _store(path: Path, secret: str) -> None:
    """Write the key for its owner's eyes only. ``mode`` counts only for a file that is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
