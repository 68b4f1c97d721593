"""Admission in this process: asked twice, at prices of every kind, and without a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from channels.db import database_sync_to_async
from django.db import connection
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from billing.core.quota import prompt_estimate
from billing.models import BillingAccount, BillingPeriod, QuotaReservation, QuotaUse
from billing.services import admission as module
from billing.services.admission import AT_ONCE, LONGEST_RETRY_AFTER, Admission, Limits, refusal
from gateway_project.embedded.process import free_port
from streaming.core.chat import parse_chat_request
from streaming.core.ids import uuid7
from streaming.errors import JournalUnavailable, QuotaExceeded
from streaming.ports import Start
from tests.billing.rows import add_plan, add_tenant

on_database = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def pool() -> AsyncIterator[AsyncConnectionPool]:
    """As a gateway has it, of the tests' own database."""
    parameters = connection.get_connection_params()
    names = ("host", "port", "user", "password", "dbname")
    conninfo = make_conninfo(**{n: parameters[n] for n in names if parameters.get(n)})
    async with AsyncConnectionPool(
        conninfo, min_size=2, open=False, kwargs={"autocommit": True}
    ) as pool:
        yield pool


@pytest.fixture
async def nowhere() -> AsyncIterator[AsyncConnectionPool]:
    """A pool of a server that does not run."""
    pool = AsyncConnectionPool(f"postgresql://x@127.0.0.1:{free_port()}/x", min_size=1, open=False)
    await pool.open()
    yield pool
    await pool.close()


PROMPT = prompt_estimate(["Hi"])
SESSION = PROMPT + 10
"""What ``start``'s session may come to."""


def start(tenant_id: int, session_id: UUID | None = None) -> Start:
    """A session of a short prompt and 10 tokens of answer at most."""
    request = parse_chat_request(
        {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}
    )
    return Start(session_id=session_id or uuid7(), tenant_id=tenant_id, model="m", request=request)


@database_sync_to_async
def tenant(name: str, **limits: Any) -> int:
    tenant_id = add_tenant(name).pk
    if limits:
        BillingAccount.objects.create(tenant_id=tenant_id, **limits)
    return tenant_id


@database_sync_to_async
def lower(tenant_id: int, to: int) -> None:
    BillingAccount.objects.filter(tenant_id=tenant_id).update(token_limit=to)


@database_sync_to_async
def reserved(tenant_id: int) -> tuple[int, Decimal, int]:
    """tokens, spend, sessions"""
    use = QuotaUse.objects.get(account_id=tenant_id)
    sessions = QuotaReservation.objects.filter(use=use)
    assert sum(one.tokens for one in sessions) == use.reserved_tokens
    assert sum(one.spend for one in sessions) == use.reserved_spend
    return use.reserved_tokens, use.reserved_spend, len(sessions)


@on_database
async def test_a_session_reserves_once_however_often_it_is_asked(pool):
    tenant_id = await tenant("acme", token_limit=1000)
    asked = start(tenant_id)
    admission = Admission()
    await asyncio.gather(*(admission.admit(pool, asked) for _ in range(4)))
    await Admission().admit(pool, asked)
    await lower(tenant_id, to=1)
    await admission.admit(pool, asked)  # it has what it needs
    with pytest.raises(QuotaExceeded):
        await admission.admit(pool, start(tenant_id))
    assert await reserved(tenant_id) == (SESSION, 0, 1)


@on_database
@pytest.mark.parametrize(
    ("currency", "spend"),
    [("EUR", (PROMPT * 1 + 10 * Decimal("4.3")) / 1_000_000), ("USD", Decimal(0))],
)
async def test_spend_is_reserved_in_the_currency_of_the_limit(pool, currency, spend):
    tenant_id = await tenant("acme", spend_limit=Decimal("0.00005"), spend_currency="EUR")
    await database_sync_to_async(add_plan)(input="1", output="4.3", currency=currency)
    admission = Admission()
    await admission.admit(pool, start(tenant_id))
    assert await reserved(tenant_id) == (SESSION, spend, 1)
    if currency == "EUR":
        with pytest.raises(QuotaExceeded, match=r"of 0\.00005 EUR"):
            await admission.admit(pool, start(tenant_id))


@on_database
async def test_what_nobody_has_priced_costs_nothing(pool):
    tenant_id = await tenant("acme", spend_limit=Decimal(1), spend_currency="EUR")
    await Admission().admit(pool, start(tenant_id))
    assert await reserved(tenant_id) == (SESSION, 0, 1)


@on_database
async def test_without_a_database_a_limit_is_kept(pool, nowhere, monkeypatch):
    limited, free = await tenant("limited", token_limit=1000), await tenant("free")
    monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
    monkeypatch.setattr(module, "DATABASE_SECONDS", 0.5)
    admission = Admission()
    with pytest.raises(JournalUnavailable):  # nobody knows them yet
        await admission.admit(nowhere, start(free))
    monkeypatch.setattr(module, "DATABASE_SECONDS", 30.0)
    for tenant_id in (limited, free):
        await admission.admit(pool, start(tenant_id))
    monkeypatch.setattr(module, "DATABASE_SECONDS", 0.5)
    await admission.admit(nowhere, start(free))
    with pytest.raises(JournalUnavailable) as raised:
        await admission.admit(nowhere, start(limited))
    assert raised.value.retry_after == 1
    monkeypatch.setattr(module, "TRUST_SECONDS", 0.0)
    with pytest.raises(JournalUnavailable):
        await admission.admit(nowhere, start(free))


@on_database
async def test_who_holds_the_row_for_long_makes_them_come_again(pool, monkeypatch):
    tenant_id = await tenant("acme", token_limit=1000)
    await Admission().admit(pool, start(tenant_id))
    monkeypatch.setattr(module, "DATABASE_SECONDS", 0.5)
    async with pool.connection() as holder, holder.transaction():
        await holder.execute(
            "SELECT 1 FROM billing_quotause WHERE account_id = %s FOR UPDATE", (tenant_id,)
        )
        with pytest.raises(JournalUnavailable):
            await Admission().admit(pool, start(tenant_id))
    monkeypatch.setattr(module, "DATABASE_SECONDS", 30.0)
    await Admission().admit(pool, start(tenant_id))


@on_database
async def test_a_tenant_that_waits_keeps_no_other_waiting(pool):
    """Here a connection is left beside those that a tenant may hold, and the one that holds it up."""
    busy, other = await tenant("busy", token_limit=1000), await tenant("other", token_limit=1000)
    admission = Admission()
    for tenant_id in (busy, other):
        await admission.admit(pool, start(tenant_id))
    await pool.resize(AT_ONCE + 2)
    async with pool.connection() as holder, holder.transaction():
        await holder.execute(
            "SELECT 1 FROM billing_quotause WHERE account_id = %s FOR UPDATE", (busy,)
        )
        waiting = [asyncio.create_task(admission.admit(pool, start(busy))) for _ in range(9)]
        await asyncio.sleep(0)
        await admission.admit(pool, start(other))
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting)
    assert await reserved(busy) == (10 * SESSION, 0, 10)


@on_database
async def test_a_new_month_is_noticed_at_once(pool):
    """What is known of the limits is of a period; when it is over it is asked for again."""
    tenant_id = await tenant("acme", token_limit=1000, time_zone="Asia/Tokyo")
    admission = Admission()
    await admission.admit(pool, start(tenant_id))
    period = await database_sync_to_async(BillingPeriod.objects.get)(tenant_id=tenant_id)
    known = admission._limits[tenant_id]
    limits = Limits(1000, None, "", period.name, "Asia/Tokyo", period.ends_at)
    assert known.limits == limits
    over = replace(limits, period="2001-01", ends_at=datetime.now(UTC))
    admission._limits[tenant_id] = replace(known, limits=over, until=known.until + 1000)
    await admission.admit(pool, start(tenant_id))
    assert admission._limits[tenant_id].limits == limits
    assert await reserved(tenant_id) == (2 * SESSION, 0, 2)


@pytest.mark.parametrize(
    ("left", "retry_after"),
    [
        (timedelta(days=9), LONGEST_RETRY_AFTER),
        (timedelta(minutes=2), 120),
        (-timedelta(days=1), 1),
    ],
)
def test_retry_after_is_never_absurd(left, retry_after):
    limits = Limits(100, None, "", "2026-11", "Asia/Tokyo", datetime.now(UTC) + left)
    error = refusal(found(tokens=100), limits)
    assert error.retry_after == pytest.approx(retry_after, abs=10)
    assert "(Asia/Tokyo)" in str(error)
    assert "reserved" not in str(error)


def test_what_is_reserved_comes_back_soon():
    limits = Limits(100, None, "", "2026-11", "UTC", datetime.now(UTC) + timedelta(days=9))
    error = refusal(found(tokens=40, reserved_tokens=60), limits)
    assert error.retry_after == 5
    assert "40 are used and 60 reserved by answers under way" in str(error)


def test_money_is_told_as_it_is():
    limits = Limits(None, Decimal("12.50"), "EUR", "2026-11", "UTC", datetime.now(UTC))
    error = refusal(
        found(
            token_limit=None, spend_limit=Decimal("12.500000000000000000"), spend_currency="EUR",
            spent=Decimal("12.750000000000000000"),
        ),
        limits,
    )  # fmt: skip
    assert "of 12.5 EUR for 2026-11 12.75 are used." in str(error)


def found(**values: Any) -> dict[str, Any]:
    """What the database says of an account and its use."""
    return {
        "token_limit": 100, "spend_limit": None, "spend_currency": "", "limits_are_hard": True,
        "tokens": 0, "reserved_tokens": 0, "spent": Decimal(0), "reserved_spend": Decimal(0), **values,
    }  # fmt: skip
