"""Who asks, and what answers: tenants with their keys, users and prices; nodes and gateways."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from django.db.models import Q
from django.utils import timezone

from billing.models import BillingAccount, PricePlan
from billing.services.periods import account_of
from billing.services.prices import set_plan
from streaming.conf import conf
from streaming.core.retention import expiry_day
from streaming.models import ApiKey, GatewayInstance, InferenceNode, StreamSession, Tenant
from streaming.services.api_keys import create_api_key
from streaming.services.demo_tokens import DEMO_TENANT
from streaming.services.partitions import make_partitions

PREFIX = "demo-"
"""Tenants whose names begin so are ours: nobody's real sessions are among theirs."""

CUSTOMERS = (
    ("harbour", "Harbour Books", "Europe/Berlin", "EUR", "web"),
    ("northwind", "Northwind Appliances", "America/New_York", "USD", "support"),
    ("kanda", "Kanda Travel", "Asia/Tokyo", "USD", "app"),
    ("lumiere", "Lumière Énergie", "Europe/Paris", "EUR", "advisers"),
    ("cobalt", "Cobalt Legal", "Europe/London", "EUR", "drafting"),
    ("meridian", "Meridian Clinics", "Europe/Zurich", "EUR", "reception"),
    ("orchard", "Orchard School", "Europe/Dublin", "EUR", "tutoring"),
    ("tidewater", "Tidewater Insurance", "America/Chicago", "USD", "claims"),
)
MODELS = {
    "llama-3.1-8b-instruct": ("gpu-1", "gpu-2", "gpu-3", "gpu-4"),
    "qwen2.5-32b-instruct": ("gpu-5", "gpu-6", "gpu-7"),
}
ALIASES = {"llama-3.1-8b-instruct": "chat-default", "qwen2.5-32b-instruct": "chat-large"}
PRICED_SINCE = timedelta(days=400)
MOST_DAYS = 365
_FIRST_NAMES = (
    "mara", "jonas", "ada", "ibrahim", "lucia", "soren", "aiko", "priya", "tomasz", "elif", "noah",
    "ines", "yusuf", "greta", "kofi", "hana",
)  # fmt: skip
_LAST_NAMES = (
    "lind", "okafor", "meyer", "tanaka", "silva", "novak", "rossi", "haddad", "berg", "dubois",
    "clarke", "nguyen",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Customer:
    """A tenant with its keys (id and what they are for) and its users, the busiest first."""

    id: int
    name: str
    keys: tuple[int, ...]
    users: tuple[str, ...]
    content_days: int
    reach: tuple[float, ...]
    """Cumulative weights of the users."""

    def user(self, chance: random.Random) -> str:
        return chance.choices(self.users, cum_weights=self.reach)[0]


@dataclass(frozen=True, slots=True)
class World:
    """``nodes``: ids by name. ``gateways``: ids of processes, two of which run at any time."""

    customers: tuple[Customer, ...]
    nodes: dict[str, int]
    gateways: tuple[int, ...]
    starts_at: datetime
    ends_at: datetime

    def gateway(self, at: float, number: int) -> int:
        """The process that number ``number`` of the two is at Unix time ``at``."""
        span = (self.ends_at - self.starts_at).total_seconds() + 1
        shifts = len(self.gateways) // 2
        shift = int(max(at - self.starts_at.timestamp(), 0) / span * shifts)
        return self.gateways[2 * min(shift, shifts - 1) + number % 2]


def prepare(
    chance: random.Random, *, tenants: int, users: int, starts_at: datetime, by: str
) -> World:
    """What is not there yet is made; of gateways there are new ones, which have stopped since."""
    now = timezone.now()
    customers = tuple(_customer(chance, number, users, by) for number in range(tenants))
    days = {starts_at + timedelta(days=number) for number in range((now - starts_at).days + 2)}
    make_partitions({expiry_day(day, one.content_days) for day in days for one in customers})
    return World(customers, _nodes(), _gateways(starts_at, now), starts_at, now)


def foreign_sessions() -> bool:
    """Whether sessions of others than ours, and the demo's own tenant, are stored."""
    ours = Q(tenant__name__startswith=PREFIX) | Q(tenant__name=DEMO_TENANT)
    return StreamSession.objects.exclude(ours).exists()


def _customer(chance: random.Random, number: int, users: int, by: str) -> Customer:
    name, words, zone, currency, centre = CUSTOMERS[number % len(CUSTOMERS)]
    again = number // len(CUSTOMERS)
    name = f"{PREFIX}{name}{again + 1 if again else ''}"
    words = f"{words} {again + 1}" if again else words
    tenant = Tenant.objects.filter(name=name).first()
    if tenant is None:
        create_api_key(tenant_name=name, name=f"{centre} (live)", by=by)
        create_api_key(tenant_name=name, name="batch", by=by)
        tenant = Tenant.objects.get(name=name)
        tenant.display_name = words
        tenant.support_sees_content = number % 3 == 0
        tenant.save()
        ApiKey.objects.filter(tenant=tenant, name="batch").update(cost_centre=f"{centre}-batch")
        account_of(tenant.pk)
        BillingAccount.objects.filter(pk=tenant.pk).update(legal_name=words, time_zone=zone)
    if not PricePlan.objects.filter(list__tenant=tenant).exists():
        set_plan(
            tenant_id=tenant.pk,
            model="",
            currency=currency,
            input_per_million=Decimal("0.50"),
            cached_input_per_million=Decimal("0.10"),
            output_per_million=Decimal(("1.50", "1.80", "2.20")[number % 3]),
            cost_per_million=Decimal("0.80"),
            effective_from=timezone.now() - PRICED_SINCE,
            note="Prices of the demo",
            actor=by,
        )
    keys = tuple(
        ApiKey.objects.filter(tenant=tenant, revoked_at=None)
        .order_by("pk")
        .values_list("pk", flat=True)[:2]
    )
    weights = [1 / (rank + 3) for rank in range(users)]
    reach = tuple(sum(weights[: rank + 1]) for rank in range(users))
    days = conf().content_days if tenant.content_days is None else tenant.content_days
    return Customer(tenant.pk, name, keys, tuple(_users(chance, number, users)), days, reach)


def _users(chance: random.Random, number: int, count: int) -> list[str]:
    """As tenants call them: names, addresses, numbers; and of some requests nobody says it."""
    style = number % 3
    found: dict[str, None] = {} if number % 4 else {"": None}
    while len(found) < count:
        first, last = chance.choice(_FIRST_NAMES), chance.choice(_LAST_NAMES)
        digits = chance.randrange(10, 10_000)
        name = (f"{first}.{last}{digits}", f"{first}{digits}@example.com", f"user-{digits:05d}")
        found[name[style] if len(found) < 9 * count // 10 else f"u{len(found)}-{digits}"] = None
    return list(found)


def _nodes() -> dict[str, int]:
    """They are drained, and their names lead nowhere: no gateway is to send them anything."""
    return {
        name: InferenceNode.objects.get_or_create(
            name=name,
            defaults={
                "dialect": InferenceNode.Dialect.VLLM,
                "base_url": f"http://{name}.invalid:8000",
                "admin_state": InferenceNode.Admin.DRAINED,
                "source": InferenceNode.Source.COMMAND,
                "models_served": [model],
            },
        )[0].pk
        for model, names in MODELS.items()
        for name in names
    }


def _gateways(starts_at: datetime, now: datetime) -> tuple[int, ...]:
    """Two at a time, replaced every other day."""
    shifts = max(1, round((now - starts_at) / timedelta(days=2)))
    length = (now - starts_at) / shifts
    rows = [
        GatewayInstance(
            hostname=f"gw-{number + 1}",
            pid=200 + 17 * shift + number,
            started_at=starts_at + shift * length,
            heartbeat_at=starts_at + (shift + 1) * length,
            stopped_at=min(now, starts_at + (shift + 1) * length + timedelta(hours=1)),
        )
        for shift in range(shifts)
        for number in range(2)
    ]
    return tuple(row.pk for row in GatewayInstance.objects.bulk_create(rows))
