"""System checks: settings that cannot work, and a database without its guards.

==========  =========================================================================
billing.E001  BILLING_CURRENCY is no ISO 4217 code
billing.E002  CREDIT_APPROVAL_ABOVE is no amount
billing.E003  AUDIT_KEY is too short to sign with
billing.E004  there is no time zone data
billing.E005  a guard of the ledger, the audit log, periods or prices is gone or disabled
==========  =========================================================================
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from django.core import checks
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from billing.conf import conf
from billing.core.currencies import CURRENCIES
from billing.core.money import typed
from billing.services import guards

AUDIT_KEY_CHARACTERS = 32


@checks.register(checks.Tags.compatibility)
def check_currency(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Usage that nobody has priced is in it, at 0."""
    if conf().billing_currency in CURRENCIES:
        return []
    return [
        checks.Error(
            f"BILLING_CURRENCY {conf().billing_currency!r} is no ISO 4217 code.",
            hint="Three capital letters of a currency that is in use, such as EUR, USD or JPY.",
            id="billing.E001",
        )
    ]


@checks.register(checks.Tags.compatibility)
def check_credit_approval(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """It must be an amount, and one that amounts can be above."""
    given = conf().credit_approval_above
    try:
        amount = typed(given)
    except ValueError:
        amount = Decimal(-1)
    if amount >= 0:
        return []
    return [
        checks.Error(
            f"CREDIT_APPROVAL_ABOVE {given!r} is no amount.",
            hint="A plain decimal such as 100 or 49.90; 0: every credit needs a second person.",
            id="billing.E002",
        )
    ]


@checks.register(checks.Tags.security)
def check_audit_key(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Who can guess the key can publish a head that nobody has seen."""
    keys = [key.strip() for key in conf().audit_key.split(",") if key.strip()]
    short = [len(key) for key in keys if len(key) < AUDIT_KEY_CHARACTERS]
    return [
        checks.Error(
            f"A key in AUDIT_KEY has {length} characters; at least {AUDIT_KEY_CHARACTERS} are needed.",
            hint="Leave it empty to derive it from SECRET_KEY, or set it to the output of "
            "`python -c 'import secrets; print(secrets.token_urlsafe(48))'`; older keys follow after "
            "commas, so that heads that they have signed can still be checked.",
            id="billing.E003",
        )
        for length in short
    ]


@checks.register(checks.Tags.compatibility)
def check_time_zones(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Months begin at midnight somewhere."""
    try:
        zoneinfo.ZoneInfo("Pacific/Auckland")
    except zoneinfo.ZoneInfoNotFoundError:
        return [
            checks.Error(
                "There is no time zone data on this machine.",
                hint="Install the system's tzdata package, or `pip install tzdata`.",
                id="billing.E004",
            )
        ]
    return []


@checks.register(checks.Tags.database)
def check_guards(
    app_configs: Any = None, *, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """What the migrations have put up must stand: without it the ledger is a table like any other.

    Says nothing of a database to which they were not all applied yet.
    """
    if not databases or "default" not in databases:
        return []
    loader = MigrationLoader(connection)
    if any(
        key[0] == "billing" and key not in loader.applied_migrations for key in loader.graph.nodes
    ):
        return []
    return [
        checks.Error(
            f"{table} has lost its guard {name}: it is gone or disabled.",
            hint=f"`ALTER TABLE {table} ENABLE TRIGGER {name}` if it was disabled, else create it "
            "again as the migrations of billing do. Then `manage.py verify_audit`, and find out who "
            "has done it.",
            id="billing.E005",
        )
        for table, name in guards.missing()
    ]
