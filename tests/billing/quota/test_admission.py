"""Quotas at the gateways: concurrent starts, each way in, and what is never refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import openai
import orjson
import psycopg
import pytest

from billing.core.months import month_of
from billing.core.quota import prompt_estimate
from tests.durability.reader import Readers, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack
from tests.websocket.talk import chat, talk

ANSWER, OUTPUT = 15, 20
"""How long answers are, and how long they might have become."""
RESERVED = prompt_estimate([question("Reader 00", ANSWER)[0]["content"]]) + OUTPUT


@pytest.fixture(scope="module")
def engine() -> Iterator[SimulatorProcess]:
    with SimulatorProcess("vllm") as engine:
        yield engine


@pytest.fixture(scope="module")
def stack(engine: SimulatorProcess) -> Iterator[Stack]:
    """Two gateways over one engine. There is no worker, so gateways settle after a while."""
    with (
        Stack(
            gateways=2,
            engine_nodes=[f"a=vllm+{engine.url}"],
            env={"QUOTA_OUTPUT_TOKENS": "30", "GRACE_SECONDS": "0.3"},
        ) as stack,
    ):
        yield stack


@pytest.fixture
def unsettled(stack: Stack) -> Iterator[None]:
    """Nothing is settled meanwhile, so reservations stay."""
    with psycopg.connect(stack.database_url) as holder:
        holder.execute("LOCK TABLE billing_usagerecord IN EXCLUSIVE MODE")
        yield


def limited(stack: Stack, tenant: str, **limits: Any) -> str:
    """A key of a tenant with limits, unknown to all gateways so far."""
    key = stack.api_key(tenant)
    columns = {"token_limit": None, "spend_limit": None, "spend_currency": "", **limits}
    stack.sql(
        "INSERT INTO billing_billingaccount (tenant_id, legal_name, time_zone, limits_are_hard,"
        " token_limit, spend_limit, spend_currency)"
        " SELECT id, '', 'Europe/Berlin', %s, %s, %s, %s FROM streaming_tenant WHERE name = %s",
        columns.pop("limits_are_hard", True), *columns.values(), tenant,
    )  # fmt: skip
    return key


def price(stack: Stack, tenant: str, output: int) -> None:
    """Prices in EUR for a million tokens."""
    stack.sql(
        "WITH list AS (INSERT INTO billing_pricelist (tenant_id, model)"
        "  SELECT id, '' FROM streaming_tenant WHERE name = %s RETURNING id)"
        " INSERT INTO billing_priceplan (list_id, effective_from, currency, input_per_million,"
        "  cached_input_per_million, output_per_million, coefficient, policy, note, created_by, created_at)"
        " SELECT id, now() - interval '1 hour', 'EUR', 0, 0, %s, 1, 'delivered', '', 'x', now() FROM list",
        tenant, output,
    )  # fmt: skip


def used(stack: Stack, tenant: str) -> tuple[Any, ...]:
    """tokens, reserved tokens, reserved spend, reservations"""
    rows = stack.sql(
        "SELECT u.tokens, u.reserved_tokens, u.reserved_spend,"
        "  (SELECT count(*) FROM billing_quotareservation r WHERE r.use_id = u.id)"
        " FROM billing_quotause u JOIN streaming_tenant t ON t.id = u.account_id WHERE t.name = %s",
        tenant,
    )
    return rows[0] if rows else (0, 0, 0, 0)


def use_up(stack: Stack, tenant: str, tokens: int) -> None:
    """As settlements do."""
    stack.sql(
        "INSERT INTO billing_quotause (account_id, period_name, tokens, reserved_tokens, spent,"
        " reserved_spend, currency) SELECT id, %s, %s, 0, 0, 0, '' FROM streaming_tenant WHERE name = %s",
        month_of(datetime.now(UTC), "Europe/Berlin"), tokens, tenant,
    )  # fmt: skip


async def test_starts_at_once_do_not_overshoot_by_more_than_what_is_in_flight(stack, unsettled):
    """30 starts over two gateways; what one may come to is a tenth of the limit."""
    key = limited(stack, "crowd", token_limit=10 * RESERVED - 5)
    async with Readers(stack.gateway(0).url, key) as a, Readers(stack.gateway(1).url, key) as b:
        seen = await asyncio.gather(
            *(
                (a, b)[number % 2].ask(question(f"Reader {number:02}", ANSWER), max_tokens=OUTPUT)
                for number in range(30)
            )
        )
    answered = [one for one in seen if one.status == 200]
    refused = [one for one in seen if one.status == 429]
    assert (len(answered), len(refused)) == (10, 20)
    assert all(one.is_whole for one in answered), [one.trouble for one in answered]
    assert used(stack, "crowd") == (0, 10 * RESERVED, 0, 10)
    for one in refused:
        assert one.error["code"] == one.error["type"] == "insufficient_quota"
        assert f"{10 * RESERVED - 5:,} tokens" in one.error["message"]
        assert f"{10 * RESERVED:,} reserved by answers under way" in one.error["message"]
        assert one.headers["retry-after"] == "5"


async def test_spend_is_reserved_at_the_price_in_force(stack, unsettled):
    price_each = 1_000_000  # one EUR a token
    key = limited(stack, "rich", spend_limit=5 * OUTPUT, spend_currency="EUR")
    price(stack, "rich", price_each)
    async with Readers(stack.gateway().url, key) as readers:
        seen = await readers.ask_many(10, "Spend", ANSWER, max_tokens=OUTPUT)
    assert sorted(one.status for one in seen) == [200] * 5 + [429] * 5
    assert used(stack, "rich")[2:] == (5 * OUTPUT, 5)
    refused = next(one for one in seen if one.status == 429)
    assert "of 100 EUR" in refused.error["message"]


async def test_without_max_tokens_a_default_is_reserved(stack, unsettled):
    key = limited(stack, "open", token_limit=10_000)
    async with Readers(stack.gateway().url, key) as readers:
        assert (await readers.ask(question("Reader 00", ANSWER))).is_whole
    assert used(stack, "open")[1] == RESERVED - OUTPUT + 30


async def test_who_has_no_hard_limit_leaves_no_row(stack):
    keys = [
        stack.api_key("free"),
        limited(stack, "told", token_limit=1, limits_are_hard=False),
        limited(stack, "none"),
    ]
    for key in keys:
        async with Readers(stack.gateway().url, key) as readers:
            assert (await readers.ask(question("Hello", 5))).is_whole
    for tenant in ("free", "told", "none"):
        assert used(stack, tenant)[3] == 0


async def test_every_way_in_says_what_the_limit_is(stack):
    key = limited(stack, "spent", token_limit=1000)
    use_up(stack, "spent", 1001)
    url, headers = stack.gateway().url, {"authorization": f"Bearer {key}"}
    body = {"model": "sim-model", "messages": question("No", 5)}
    month = month_of(datetime.now(UTC), "Europe/Berlin")
    async with httpx.AsyncClient(base_url=url, headers=headers) as client:
        for path, more in (
            ("/v1/chat/completions", {"stream": True}),
            ("/v1/chat/completions", {}),
            ("/v1/sessions", {}),
        ):
            answer = await client.post(path, json={**body, **more})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (429, "insufficient_quota")
            assert f"of 1,000 tokens for {month} 1,001 are used" in error["message"]
            assert "Europe/Berlin" in error["message"]
            assert 0 < int(answer.headers["retry-after"]) <= 3600
    async with talk(stack.gateway().websocket_url + "/ws/chat/", key) as socket:
        told = await socket.error_of(
            orjson.dumps({"type": "start", "ref": 7, "request": chat("No", 5)})
        )
        assert (told["error"]["code"], told["ref"]) == ("insufficient_quota", 7)
    sdk = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    with pytest.raises(openai.RateLimitError) as raised:
        await sdk.chat.completions.create(**body)
    assert raised.value.code == "insufficient_quota"
    assert stack.sql(
        "SELECT count(*) FROM streaming_streamsession s JOIN streaming_tenant t ON t.id = tenant_id"
        " WHERE name = 'spent'"
    ) == [(0,)]


async def test_a_limit_of_nothing_admits_nobody(stack):
    key = limited(stack, "zero", token_limit=0)
    async with Readers(stack.gateway().url, key) as readers:
        assert (await readers.ask(question("No", 5))).status == 429


async def test_a_limit_is_in_force_soon_and_so_is_its_end(stack):
    key = stack.api_key("later")

    async def status() -> int:
        async with Readers(stack.gateway().url, key) as readers:
            return (await readers.ask(question("Now?", 3))).status

    assert await status() == 200
    assert limited(stack, "later", token_limit=0)
    async with asyncio.timeout(20):
        while await status() != 429:  # noqa: ASYNC110  gateways learn of it by and by
            await asyncio.sleep(0.1)
    stack.sql("UPDATE billing_billingaccount SET token_limit = 100000")
    assert await status() == 200  # what is in force is what the statement finds


async def test_a_session_that_exists_is_never_refused(stack, unsettled):
    """Its replay, its continuation after a suspension, and the retry of its request."""
    key = limited(stack, "exists", token_limit=RESERVED)
    url, headers = stack.gateway().url, {"authorization": f"Bearer {key}"}
    body = {
        "model": "sim-model", "messages": question("Reader 00", 400), "max_tokens": 400, "temperature": 0,
    }  # fmt: skip
    keyed = {**headers, "idempotency-key": "once"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
        created = await client.post("/v1/sessions", json=body, headers=keyed)
        session = created.json()["id"]
        assert created.status_code == 201
        assert (await client.post("/v1/sessions", json=body)).status_code == 429
        state = "SELECT state FROM streaming_streamsession WHERE id = %s"
        # Nobody reads it: it is suspended.
        await until(lambda: stack.sql(state, session) in ([("suspended",)], [("completed",)]))
        again = await client.post("/v1/sessions", json=body, headers=keyed)
        assert (again.status_code, again.json()["id"]) == (201, session)
        for _ in range(2):  # the rest of it, then all of it again
            events = await client.get(f"/v1/sessions/{session}/events")
            assert events.status_code == 200
            assert "event: done" in events.text
    assert stack.sql(
        "SELECT count(*) FROM billing_quotareservation WHERE session_id = %s", UUID(session)
    ) == [(1,)]


async def test_a_key_of_a_refused_request_is_free_for_another_try(stack):
    key = limited(stack, "retry", token_limit=0)
    body = {"model": "sim-model", "messages": question("Again", 5), "temperature": 0}
    headers = {"authorization": f"Bearer {key}", "idempotency-key": "again"}
    async with httpx.AsyncClient(base_url=stack.gateway().url, headers=headers) as client:
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 429
        stack.sql("UPDATE billing_billingaccount SET token_limit = 100000")
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_what_was_delivered_is_what_counts(stack, engine):
    """Once, whatever it took: a failover, a reader that comes again, and no more than was reserved."""
    key = limited(stack, "served", token_limit=100_000, spend_limit=1000, spend_currency="EUR")
    price(stack, "served", 1_000_000)
    url, headers = stack.gateway().url, {"authorization": f"Bearer {key}"}
    engine.set_fault(kind="reset", at_token=8, match="Cut off")
    usage = {"include_usage": True}
    async with Readers(url, key) as readers:
        plain, cut, again = await asyncio.gather(
            readers.ask(question("Plain", 12), stream_options=usage),
            readers.ask(question("Cut off", 30), stream_options=usage),
            readers.ask(question("Again", 15), stream_options=usage),
        )
    assert all(one.is_whole for one in (plain, cut, again))
    async with httpx.AsyncClient(base_url=url, headers=headers) as client:
        replay = await client.get(f"/v1/sessions/{again.session_id}/events")
        assert "event: done" in replay.text
    assert stack.sql(
        "SELECT failovers FROM streaming_streamsession WHERE id = %s", cut.session_id
    ) == [(1,)]
    tokens = sum(one.usage["total_tokens"] for one in (plain, cut, again))
    output = sum(one.usage["completion_tokens"] for one in (plain, cut, again))
    await until(lambda: used(stack, "served") == (tokens, 0, 0, 0), seconds=60)
    assert stack.sql(
        "SELECT spent FROM billing_quotause u JOIN streaming_tenant t ON t.id = account_id"
        " WHERE name = 'served'"
    ) == [(output,)]
    assert "agree" in stack.manage("account", "recount", "served")
