"""Whether a session may begin: the limits of its tenant, asked by every gateway process.

What a session may come to is reserved before it begins and released when it is settled, so that
sessions that begin at once see each other. One statement looks and reserves: however many processes
ask together, nothing is admitted once what is used and reserved has reached a limit.

A tenant without a hard limit costs a look-up every ``CACHE_SECONDS`` and no row. Without a database
it is admitted as before; one that has a hard limit is told to try again, since a limit that somebody
has set is to be kept, and no session can become durable then anyway.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from weakref import WeakValueDictionary
from zoneinfo import ZoneInfo

import psycopg
from channels.db import database_sync_to_async
from django.db import OperationalError
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from billing.conf import conf
from billing.core.money import Prices, amount, plain
from billing.core.quota import prompt_estimate
from billing.models import PricePlan
from billing.services.periods import period_at
from billing.services.prices import plan_for
from streaming.errors import JournalUnavailable, QuotaExceeded
from streaming.ports import Start

logger = logging.getLogger(__name__)

CACHE_SECONDS = 2.0
CACHE_ENTRIES = 10_000
DATABASE_SECONDS = 3.0
"""How long the database may take to decide. A settlement of the tenant may hold the row meanwhile."""
TRUST_SECONDS = 600.0
"""Without a database: how long it is believed that a tenant has no limit."""
AGAIN_SECONDS = 5.0
"""When running sessions hold the rest of a limit; each that ends gives some of it back."""
AT_ONCE = 4
"""Sessions of a tenant that ask at once in a process. They all want one row, and those that wait for
it must not have all connections of the process: other tenants want some too."""
LONGEST_RETRY_AFTER = 3600.0
"""A limit may be raised long before its period ends."""

_LIMITS = """
SELECT a.token_limit, a.spend_limit, a.spend_currency, p.name, p.time_zone, p.ends_at
FROM billing_billingaccount a
LEFT JOIN billing_billingperiod p
    ON p.tenant_id = a.tenant_id AND p.starts_at <= now() AND p.ends_at > now()
WHERE a.tenant_id = %s AND a.limits_are_hard
    AND (a.token_limit IS NOT NULL OR a.spend_limit IS NOT NULL)
"""

# A reservation that a crash of the server loses is no harm: who commits it does not wait for the disk,
# and so holds the row, which all sessions of the tenant want, for less than a millisecond.
_RESERVE = """
WITH quick AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), reserved AS (
    INSERT INTO billing_quotause AS u
        (account_id, period_name, tokens, reserved_tokens, spent, reserved_spend, currency)
    SELECT a.tenant_id, %(period)s, 0, %(tokens)s, 0, %(spend)s, a.spend_currency
    FROM billing_billingaccount a CROSS JOIN quick
    WHERE a.tenant_id = %(tenant)s AND a.limits_are_hard
        AND (a.token_limit IS NULL OR a.token_limit > 0)
        AND (a.spend_limit IS NULL OR a.spend_limit > 0)
        AND NOT EXISTS (
            SELECT FROM billing_quotareservation r WHERE r.session_id = %(session)s
        )
    ON CONFLICT (account_id, period_name) DO UPDATE
    SET reserved_tokens = u.reserved_tokens + excluded.reserved_tokens,
        reserved_spend = u.reserved_spend + excluded.reserved_spend
    WHERE EXISTS (
        SELECT FROM billing_billingaccount a
        WHERE a.tenant_id = u.account_id
            AND (a.token_limit IS NULL OR u.tokens + u.reserved_tokens < a.token_limit)
            AND (a.spend_limit IS NULL OR u.spent + u.reserved_spend < a.spend_limit)
    )
    RETURNING u.id
)
INSERT INTO billing_quotareservation (session_id, use_id, tokens, spend, created_at)
SELECT %(session)s, id, %(tokens)s, %(spend)s, now() FROM reserved
RETURNING use_id
"""

_WHY = """
SELECT a.token_limit, a.spend_limit, a.spend_currency, a.limits_are_hard,
    coalesce(u.tokens, 0) AS tokens, coalesce(u.reserved_tokens, 0) AS reserved_tokens,
    coalesce(u.spent, 0) AS spent, coalesce(u.reserved_spend, 0) AS reserved_spend,
    EXISTS (
        SELECT FROM billing_quotareservation r WHERE r.session_id = %(session)s
    ) AS is_reserved
FROM billing_billingaccount a
LEFT JOIN billing_quotause u ON u.account_id = a.tenant_id AND u.period_name = %(period)s
WHERE a.tenant_id = %(tenant)s
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """The hard limits of a tenant, and the period that they are of now."""

    tokens: int | None
    spend: Decimal | None
    currency: str
    period: str
    time_zone: str
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class _Known:
    """``limits`` None: there are none. Times are of ``loop.time``."""

    limits: Limits | None
    learnt: float
    until: float


class Admission:
    """Decides for one process; ``admit`` is what ``streaming.ports`` calls."""

    def __init__(self) -> None:
        self._limits: dict[int, _Known] = {}
        self._plans: dict[tuple[int, str], tuple[PricePlan | None, float]] = {}
        self._turns: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Admission: {len(self._limits)} tenants known>"

    async def admit(self, pool: AsyncConnectionPool, start: Start) -> None:
        """Reserve what the session may come to, once however often it is asked.

        Raises ``QuotaExceeded``, and ``JournalUnavailable`` when the database can't be asked.
        """
        try:
            async with asyncio.timeout(DATABASE_SECONDS):
                limits = await self._limits_of(pool, start.tenant_id)
                if limits is not None:
                    await self._reserve(pool, start, limits)
        except (psycopg.OperationalError, OperationalError, TimeoutError) as exc:
            if self._had_no_limit(start.tenant_id):
                return
            logger.warning("no database to ask for a quota: %s", exc or "it is too slow")
            raise JournalUnavailable("The database cannot be reached.", retry_after=1) from exc

    def _had_no_limit(self, tenant_id: int) -> bool:
        """Whether that is the last thing that was known; then it is not asked again at once."""
        known = self._limits.get(tenant_id)
        at = asyncio.get_running_loop().time()
        if known is None or known.limits is not None or at - known.learnt > TRUST_SECONDS:
            return False
        self._limits[tenant_id] = replace(known, until=at + CACHE_SECONDS)
        return True

    async def _limits_of(self, pool: AsyncConnectionPool, tenant_id: int) -> Limits | None:
        at = asyncio.get_running_loop().time()
        known = self._limits.get(tenant_id)
        if known is not None and known.until > at and not _is_over(known.limits):
            return known.limits
        async with pool.connection() as connection:
            cursor = await connection.execute(_LIMITS, (tenant_id,))
            row = await cursor.fetchone()
        limits = None if row is None else await _of_period(tenant_id, *row)
        if len(self._limits) >= CACHE_ENTRIES:
            self._limits.clear()
        self._limits[tenant_id] = _Known(limits, at, at + CACHE_SECONDS)
        return limits

    async def _reserve(self, pool: AsyncConnectionPool, start: Start, limits: Limits) -> None:
        budget = start.request.budget.max_tokens
        prompt = prompt_estimate(message["content"] for message in start.request.messages)
        output = conf().quota_output_tokens if budget is None else budget
        spend = Decimal(0)
        if limits.spend is not None:
            spend = await self._price(start, limits.currency, prompt, output)
        values = {
            "tenant": start.tenant_id,
            "session": start.session_id,
            "period": limits.period,
            "tokens": prompt + output,
            "spend": spend,
        }
        turn = self._turns.setdefault(start.tenant_id, asyncio.Semaphore(AT_ONCE))
        async with turn, pool.connection() as connection:
            try:
                cursor = await connection.execute(_RESERVE, values)
                if await cursor.fetchone() is not None:
                    return
            except psycopg.errors.UniqueViolation:  # asked twice at once: the other has reserved
                return
            async with connection.cursor(row_factory=dict_row) as why:
                await why.execute(_WHY, values)
                found = await why.fetchone()
        if found is None or found["is_reserved"] or not found["limits_are_hard"]:
            return
        raise refusal(found, limits)

    async def _price(self, start: Start, currency: str, prompt: int, output: int) -> Decimal:
        """What the session may come to in money; nothing at prices in another currency."""
        plan = await self._plan(start.tenant_id, start.model)
        if plan is None or plan.currency != currency:
            return Decimal(0)
        prices = Prices(
            plan.input_per_million,
            plan.cached_input_per_million,
            plan.output_per_million,
            plan.coefficient,
        )
        return amount(prices, prompt=prompt, cached=0, output=output)

    async def _plan(self, tenant_id: int, model: str) -> PricePlan | None:
        at = asyncio.get_running_loop().time()
        plan, until = self._plans.get((tenant_id, model), (None, 0.0))
        if until <= at:
            plan = await database_sync_to_async(plan_for)(tenant_id, model, datetime.now(UTC))
            if len(self._plans) >= CACHE_ENTRIES:
                self._plans.clear()
            self._plans[tenant_id, model] = plan, at + CACHE_SECONDS
        return plan


def refusal(found: dict[str, Any], limits: Limits) -> QuotaExceeded:
    """The error for who asked: which limit, what of it is used, and when there is more."""
    if (limit := found["token_limit"]) is not None and (
        found["tokens"] + found["reserved_tokens"] >= limit
    ):
        used, reserved = found["tokens"], found["reserved_tokens"]
        words = [f"{number:,}" for number in (limit, used, reserved)]
        what = "tokens"
    else:
        limit, used, reserved = found["spend_limit"], found["spent"], found["reserved_spend"]
        words = [plain(number or Decimal(0)) for number in (limit, used, reserved)]
        what = found["spend_currency"]
    message = f"You exceeded your current quota: of {words[0]} {what} for {limits.period} {words[1]} are used"
    end = limits.ends_at.astimezone(ZoneInfo(limits.time_zone))
    if limit is not None and used < limit:
        message += (
            f" and {words[2]} reserved by answers under way; try again when one of them has ended."
        )
        retry_after = AGAIN_SECONDS
    else:
        message += "."
        left = (limits.ends_at - datetime.now(UTC)).total_seconds()
        retry_after = min(max(left, 1.0), LONGEST_RETRY_AFTER)
    message += f" The next period begins on {end:%Y-%m-%d at %H:%M} ({limits.time_zone})."
    return QuotaExceeded(message, retry_after=retry_after)


async def _of_period(
    tenant_id: int,
    tokens: int | None,
    spend: Decimal | None,
    currency: str,
    period: str | None,
    time_zone: str | None,
    ends_at: datetime | None,
) -> Limits:
    if period is None or time_zone is None or ends_at is None:  # the tenant's month has just begun
        begun = await database_sync_to_async(period_at)(tenant_id, datetime.now(UTC))
        period, time_zone, ends_at = begun.name, begun.time_zone, begun.ends_at
    return Limits(tokens, spend, currency, period, time_zone, ends_at)


def _is_over(limits: Limits | None) -> bool:
    """Whether the period that they are of has ended since."""
    return limits is not None and limits.ends_at <= datetime.now(UTC)


admission = Admission()
"""That of this process."""
admit = admission.admit
