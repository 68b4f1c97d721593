"""Requests and delivered tokens per minute, over two gateway processes."""

from __future__ import annotations

import asyncio
import re
import time

import openai
import pytest

from tests.durability.reader import Readers, Seen, question, until
from tests.limits.conftest import Desk
from tests.resume.events import Client, Reading, urls


async def ask_both(desk: Desk, key: str, count: int) -> tuple[list[Seen], float]:
    """``count`` requests at once over both gateways; how long it took."""
    began = time.monotonic()
    async with (
        Readers(desk.stack.gateway(0).url, key) as first,
        Readers(desk.stack.gateway(1).url, key) as second,
    ):
        halves = await asyncio.gather(
            *(readers.ask_many(count // 2, "limit", 3) for readers in (first, second))
        )
    return [seen for half in halves for seen in half], time.monotonic() - began


async def test_two_processes_admit_exactly_the_limit(desk: Desk) -> None:
    key, _ = desk.key(requests_per_minute=6)
    answers, seconds = await ask_both(desk, key, 40)
    admitted = [seen for seen in answers if seen.status == 200]
    assert 6 <= len(admitted) <= 6 + int(seconds / 10)
    for seen in answers:
        assert seen.headers["x-ratelimit-limit-requests"] == "6"
        assert "x-ratelimit-limit-tokens" not in seen.headers
        if seen.status == 200:
            assert seen.is_whole, seen.trouble
            continue
        assert seen.status == 429
        assert seen.error is not None
        assert seen.error["code"] == "rate_limit_exceeded"
        assert "this tenant: 6 requests per minute" in seen.error["message"]
        assert seen.headers["x-ratelimit-remaining-requests"] == "0"
        assert 1 <= int(seen.headers["retry-after"]) <= 10


async def test_each_limit_is_somebodys(desk: Desk) -> None:
    """A key's, and an end user's: others are not held up, and the tightest one is told."""
    name, _ = desk.tenant(requests_per_minute=50, user_requests_per_minute=2)
    small = desk.stack.api_key(name, requests_per_minute=3)
    other = desk.stack.api_key(name)
    url = desk.stack.gateway(0).url
    async with Readers(url, small) as readers:
        seen = [await readers.ask(question("k", 2), user=user) for user in "abcd"]
        assert [one.status for one in seen] == [200, 200, 200, 429]
        assert seen[-1].error is not None
        assert "this API key" in seen[-1].error["message"]
        assert seen[0].headers["x-ratelimit-limit-requests"] == "2"  # the end user's has 1 left
    async with Readers(url, other) as readers:
        seen = [await readers.ask(question("u", 2), user="b") for _ in range(2)]
        assert [one.status for one in seen] == [200, 429]
        assert seen[-1].error is not None
        assert "this end user" in seen[-1].error["message"]
        # One that names nobody is nobody's.
        unnamed = await readers.ask(question("n", 2))
        assert (unnamed.status, unnamed.headers["x-ratelimit-limit-requests"]) == (200, "50")


async def test_an_embed_token_has_limits_of_its_own_besides_its_keys(desk: Desk) -> None:
    name, _ = desk.tenant()
    key = desk.stack.api_key(name, requests_per_minute=3)
    url = desk.stack.gateway(0).url
    async with Readers(url, key) as backend:
        order = {"user": "pat", "limits": {"requests_per_minute": 2}}
        async with backend.client.post("/v1/embed-tokens", json=order) as minted:
            assert minted.status == 201, await minted.text()
            token = (await minted.json())["token"]
    async with Readers(url, token) as browser, Readers(url, key) as backend:
        seen = [await browser.ask(question("embedded", 2)) for _ in range(3)]
        assert [one.status for one in seen] == [200, 200, 429]
        assert seen[-1].error is not None
        assert "this embed token: 2 requests" in seen[-1].error["message"]
        seen = [await backend.ask(question("backend", 2)) for _ in range(2)]
        assert [one.status for one in seen] == [200, 429]


async def test_a_key_gets_no_more_by_minting_many_tokens(desk: Desk) -> None:
    name, tenant_id = desk.tenant()
    key = desk.stack.api_key(name, requests_per_minute=4)
    urls_of = [desk.stack.gateway(number).url for number in (0, 1)]
    began = time.monotonic()
    async with Readers(urls_of[0], key) as backend:
        tokens, refused = [], []
        for number in range(7):
            body = {"user": f"u{number}"}
            async with backend.client.post("/v1/embed-tokens", json=body) as minted:
                said = await minted.json()
                if minted.status == 201:
                    tokens.append(said["token"])
                else:
                    assert minted.status == 429
                    assert "this API key: 4 embed tokens per minute" in said["error"]["message"]
                    assert 1 <= int(minted.headers["retry-after"]) <= 15
                    refused.append(number)
        # What cannot be minted at all takes none.
        async with backend.client.post("/v1/embed-tokens", json={"user": ""}) as malformed:
            assert malformed.status == 400
        late = int((time.monotonic() - began) / 15)
        assert 4 <= len(tokens) <= 4 + late
        assert refused
    stored = "SELECT count(*) FROM streaming_embedtoken WHERE tenant_id = %s"
    assert desk.stack.sql(stored, tenant_id) == [(len(tokens),)]

    async def ask(number: int, token: str) -> int:
        async with Readers(urls_of[number % 2], token) as browser:
            return (await browser.ask(question(f"many {number}", 2))).status

    began = time.monotonic()
    statuses = await asyncio.gather(*(ask(n, token) for n, token in enumerate(tokens * 3)))
    admitted = statuses.count(200)
    assert 4 <= admitted <= 4 + int((time.monotonic() - began) / 15)
    assert statuses.count(429) == len(statuses) - admitted > 0


async def test_what_begins_nothing_takes_nothing(desk: Desk) -> None:
    key, tenant_id = desk.key(requests_per_minute=1)
    scope = f"tenant.{tenant_id}"
    async with Readers(desk.stack.gateway(0).url, key) as readers:
        refused = await readers.ask(question("x", 2), model="no-such-model")
        malformed = await readers.ask(question("x", 2), temperature=9)
        assert (refused.status, malformed.status) == (404, 400)
        assert desk.used(scope, 1, "requests") == 0
        headers = {"idempotency-key": "once"}
        first = await readers.ask(question("again", 5), headers=headers)
        again = await readers.ask(question("again", 5), headers=headers)
        assert first.is_whole, first.trouble
        assert (again.text, again.session_id) == (first.text, first.session_id)
        assert again.headers["x-ratelimit-remaining-requests"] == "0"
        assert (await readers.ask(question("again", 5))).status == 429


async def test_tokens_are_those_delivered(desk: Desk) -> None:
    """Failover's waste, replays and a second reader cost none; debt refuses the next request."""
    key, tenant_id = desk.key(tokens_per_minute=1)
    scope = f"tenant.{tenant_id}"
    for engine in desk.engines:
        engine.set_fault(kind="reset", at_token=7, times=1)
    headers = {"idempotency-key": "tokens"}
    async with Readers(desk.stack.gateway(0).url, key) as readers:
        seen = await readers.ask(question("count me", 20), headers=headers)
        assert seen.is_whole, seen.trouble
        tokens = seen.answer.completion_tokens
        await until(lambda: desk.seen(seen.session_id) == tokens)
        assert desk.used(scope, 1) == tokens
        replay = await readers.ask(question("count me", 20), headers=headers)
        assert replay.is_whole, replay.trouble
        refused = await readers.ask(question("more", 2))
        assert refused.status == 429
        assert refused.error is not None
        assert f"1 tokens per minute, {tokens} used" in refused.error["message"]
        assert refused.headers["x-ratelimit-limit-tokens"] == "1"
        assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
        assert 60 * (tokens - 1) < int(refused.headers["retry-after"]) <= 60 * tokens
        assert refused.headers["x-ratelimit-reset-tokens"].startswith(
            (f"{tokens}m", f"{tokens - 1}m")
        )
    assert desk.used(scope, 1) == tokens


async def test_a_reader_that_leaves_pays_for_what_it_got_and_comes_back_elsewhere(
    desk: Desk,
) -> None:
    key, tenant_id = desk.key(tokens_per_minute=1)
    messages = question("I leave", 500)
    async with Readers(desk.stack.gateway(0).url, key) as readers:
        seen = await readers.ask(messages, leave_after=20)
    session_id = seen.session_id

    def state() -> str:
        query = "SELECT state FROM streaming_streamsession WHERE id = %s"
        return desk.stack.sql(query, session_id)[0][0]

    await until(lambda: state() == "suspended", 20)
    await until(lambda: desk.seen(session_id) == desk.delivered(session_id) > 0)
    taken = desk.delivered(session_id)
    assert 20 <= taken < 500
    assert desk.used(f"tenant.{tenant_id}", 1) == taken
    reading = Reading(session_id, messages, cursor=taken)
    async with Client(urls(desk.stack), key) as client:
        await client.read_on(reading, gateways=(1,))
    tokens = reading.answer.completion_tokens
    await until(lambda: desk.seen(session_id) == tokens)
    assert desk.used(f"tenant.{tenant_id}", 1) == tokens


def test_the_official_client_understands(desk: Desk) -> None:
    key, _ = desk.key(requests_per_minute=1, tokens_per_minute=10_000)
    client = openai.OpenAI(base_url=f"{desk.stack.gateway(0).url}/v1", api_key=key, max_retries=0)
    raw = client.chat.completions.with_raw_response.create(
        model="sim-model", messages=question("sdk", 4)
    )
    assert raw.headers["x-ratelimit-limit-requests"] == "1"
    assert raw.headers["x-ratelimit-remaining-requests"] == "0"
    assert re.fullmatch(r"1m0s|59(\.\d+)?s", raw.headers["x-ratelimit-reset-requests"])
    assert raw.headers["x-ratelimit-limit-tokens"] == "10000"
    assert raw.headers["x-ratelimit-remaining-tokens"] == "10000"
    assert raw.headers["x-ratelimit-reset-tokens"] == "0s"
    with pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(model="sim-model", messages=question("sdk", 4))
    assert refused.value.code == "rate_limit_exceeded"
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
