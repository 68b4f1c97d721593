"""Admission in this process: asked twice, at prices of every kind, and without a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from psycopg_pool import AsyncConnectionPool

from billing.services import admission as module
from billing.services.admission import LONGEST_RETRY_AFTER, Admission, Limits, refusal
from gateway_project.embedded.process import free_port
from streaming.core.chat import parse_chat_request
from streaming.core.ids import uuid7
from streaming.errors import JournalUnavailable, QuotaExceeded
from streaming.ports import Start
from tests.stack import Stack


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Only its database."""
    with Stack(gateways=0) as stack:
        yield stack


@pytest.fixture
async def pool(stack: Stack) -> AsyncIterator[AsyncConnectionPool]:
    async with AsyncConnectionPool(
        stack.database_url, min_size=2, open=False, kwargs={"autocommit": True}
    ) as pool:
        yield pool


@pytest.fixture
async def nowhere() -> AsyncIterator[AsyncConnectionPool]:
    """A pool of a server that does not run."""
    pool = AsyncConnectionPool(f"postgresql://x@127.0.0.1:{free_port()}/x", min_size=1, open=False)
    await pool.open()
    yield pool
    await pool.close()


def start(tenant_id: int, session_id: UUID | None = None) -> Start:
    request = parse_chat_request(
        {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}
    )
    return Start(session_id=session_id or uuid7(), tenant_id=tenant_id, model="m", request=request)


def tenant(stack: Stack, name: str, token_limit: int | None) -> int:
    stack.api_key(name)
    ((tenant_id,),) = stack.sql("SELECT id FROM streaming_tenant WHERE name = %s", name)
    if token_limit is not None:
        stack.sql(
            "INSERT INTO billing_billingaccount (tenant_id, legal_name, time_zone, spend_currency,"
            " limits_are_hard, token_limit) VALUES (%s, '', 'UTC', '', true, %s)",
            tenant_id, token_limit,
        )  # fmt: skip
    return tenant_id


async def test_a_session_reserves_once_however_often_it_is_asked(stack, pool):
    tenant_id = tenant(stack, "twice", 1000)
    asked = start(tenant_id)
    admission = Admission()
    await asyncio.gather(*(admission.admit(pool, asked) for _ in range(4)))
    await Admission().admit(pool, asked)
    stack.sql("UPDATE billing_billingaccount SET token_limit = 1 WHERE tenant_id = %s", tenant_id)
    await admission.admit(pool, asked)  # it has what it needs
    with pytest.raises(QuotaExceeded):
        await admission.admit(pool, start(tenant_id))
    assert stack.sql(
        "SELECT reserved_tokens, (SELECT sum(tokens)::int FROM billing_quotareservation)"
        " FROM billing_quotause WHERE account_id = %s",
        tenant_id,
    ) == [(19, 19)]


async def test_without_a_database_a_limit_is_kept(stack, pool, nowhere, monkeypatch):
    monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
    monkeypatch.setattr(module, "DATABASE_SECONDS", 0.5)
    limited, free = tenant(stack, "limited", 1000), tenant(stack, "free", None)
    admission = Admission()
    with pytest.raises(JournalUnavailable):  # nobody knows them yet
        await admission.admit(nowhere, start(free))
    monkeypatch.setattr(module, "DATABASE_SECONDS", 10.0)
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


async def test_who_holds_the_row_for_long_makes_them_come_again(stack, pool, monkeypatch):
    tenant_id = tenant(stack, "slow", 1000)
    await Admission().admit(pool, start(tenant_id))
    monkeypatch.setattr(module, "DATABASE_SECONDS", 0.5)
    async with pool.connection() as holder, holder.transaction():
        await holder.execute(
            "SELECT 1 FROM billing_quotause WHERE account_id = %s FOR UPDATE", (tenant_id,)
        )
        with pytest.raises(JournalUnavailable):
            await Admission().admit(pool, start(tenant_id))
    monkeypatch.setattr(module, "DATABASE_SECONDS", 10.0)
    await Admission().admit(pool, start(tenant_id))


async def test_a_new_month_is_noticed_at_once(stack, pool):
    """What is known of the limits is of a period; when it is over it is asked for again."""
    tenant_id = tenant(stack, "month", 1000)
    now = datetime.now(UTC)
    names = []
    for name, begin, end in (("2001-01", -60, -30), ("2001-02", -30, 30)):
        stack.sql(
            "INSERT INTO billing_billingperiod (tenant_id, name, starts_at, ends_at, time_zone,"
            " closed_by, checklist) VALUES (%s, %s, %s, %s, 'UTC', '', '{}')",
            tenant_id, name, now + timedelta(seconds=begin), now + timedelta(seconds=end),
        )  # fmt: skip
    admission = Admission()
    await admission.admit(pool, start(tenant_id))
    known = admission._limits[tenant_id]
    assert known.limits is not None
    names.append(known.limits.period)
    stack.sql(
        "UPDATE billing_billingperiod SET ends_at = now() WHERE name = '2001-02' AND tenant_id = %s",
        tenant_id,
    )
    stack.sql(
        "INSERT INTO billing_billingperiod (tenant_id, name, starts_at, ends_at, time_zone, closed_by,"
        " checklist) VALUES (%s, '2001-03', now(), now() + interval '1 hour', 'UTC', '', '{}')",
        tenant_id,
    )
    over = Limits(1000, None, "", "UTC", "2001-02", datetime.now(UTC))
    admission._limits[tenant_id] = module._Known(over, known.learnt, known.until + 1000)
    await admission.admit(pool, start(tenant_id))
    assert admission._limits[tenant_id].limits.period == "2001-03"
    assert names == ["2001-02"]


@pytest.mark.parametrize(
    ("left", "retry_after"),
    [
        (timedelta(days=9), LONGEST_RETRY_AFTER),
        (timedelta(minutes=2), 120),
        (-timedelta(days=1), 1),
    ],
)
def test_retry_after_is_never_absurd(left, retry_after):
    limits = Limits(100, None, "", "Asia/Tokyo", "2026-11", datetime.now(UTC) + left)
    error = refusal(found(tokens=100), limits)
    assert error.retry_after == pytest.approx(retry_after, abs=10)
    assert "(Asia/Tokyo)" in str(error)
    assert "reserved" not in str(error)


def test_what_is_reserved_comes_back_soon():
    limits = Limits(100, None, "", "UTC", "2026-11", datetime.now(UTC) + timedelta(days=9))
    error = refusal(found(tokens=40, reserved_tokens=60), limits)
    assert error.retry_after == 5
    assert "40 are used and 60 reserved by answers under way" in str(error)


def test_money_is_told_as_it_is():
    limits = Limits(None, Decimal("12.50"), "EUR", "UTC", "2026-11", datetime.now(UTC))
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
