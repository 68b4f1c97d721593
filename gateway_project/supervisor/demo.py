"""What ``make run`` prepares for a visitor: an admin login, an API key, and prices to be charged."""

from __future__ import annotations

import os
import secrets
from decimal import Decimal
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command

from billing.models import PricePlan
from billing.services.prices import set_plan
from gateway_project.supervisor.console import say
from streaming.models import Tenant
from streaming.services.demo_tokens import DEMO_TENANT

USER = "demo"


def prepare_demo(url: str) -> None:
    """Print the admin login; ``seed_demo_access`` makes the tenant and prints its API key."""
    say("admin", f"{url}/admin/  user {USER}  password {_admin_password()}")
    call_command("seed_demo_access")
    price_demo()


def price_demo() -> None:
    """Prices for the demo tenant, so that its sessions have a bill. Once: a visitor may change them."""
    tenant = Tenant.objects.get(name=DEMO_TENANT)
    if PricePlan.objects.filter(list__tenant=tenant).exists():
        return
    set_plan(
        tenant_id=tenant.pk,
        model="",
        currency="EUR",
        input_per_million=Decimal("0.50"),
        cached_input_per_million=Decimal("0.10"),
        output_per_million=Decimal("1.50"),
        cost_per_million=Decimal("0.80"),
        note="Prices of the demo",
        actor="system",
    )


def _admin_password() -> str:
    """The password of the demo admin, the same at every start: ``DATA_DIR/demo_password``."""
    path: Path = settings.DATA_DIR / "demo_password"
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(9))
    password = path.read_text()
    user, _ = get_user_model().objects.get_or_create(
        username=USER, defaults={"is_staff": True, "is_superuser": True}
    )
    if not user.check_password(password):
        user.set_password(password)
        user.save()
    return password
