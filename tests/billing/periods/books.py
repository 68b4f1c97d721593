"""Settled sessions and their charges, for tests of what is done with lines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from django.db import connection

from billing.models import LedgerEntry
from billing.services.settlement import settle_session
from streaming.models import Tenant
from tests.billing.rows import Story, add_plan, add_tenant, ended_session

_models = itertools.count(1)


def settle(story: Story) -> LedgerEntry:
    """Settle a session as the worker does; its last line."""
    settle_session(story.session.pk)
    entry = LedgerEntry.objects.filter(session_id=story.session.pk).order_by("settlement__n").last()
    assert entry is not None
    return entry


def charged(
    amount: str, tenant: Tenant | None = None, *, currency: str = "EUR", **story: Any
) -> LedgerEntry:
    """A charge of so much (13 decimals at most): ten tokens of a model that has just this price."""
    model = f"m-{next(_models)}"
    price = Decimal(amount) * 100_000
    add_plan(model=model, input="0", output=str(price), currency=currency)
    told = ended_session(tenant=tenant or add_tenant(), model=model, **story)
    return settle(told)


@contextmanager
def guards_off(*tables: str) -> Iterator[None]:
    """As a person with enough rights: the rows of these tables can be changed."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
