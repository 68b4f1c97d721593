"""Pages of other origins over HTTP: who may ask, and who may read the answer."""

from __future__ import annotations

import asyncio
import json
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.exceptions import ValidationError
from django.middleware.csrf import _get_new_csrf_string
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming.core.origins import origin_of, origins_of
from streaming.models import Tenant
from streaming.services.origins import AllowedOrigins
from tests.security.conftest import EVIL, NEWS, SHOP, House, code_of, request

ALLOW = "access-control-allow-origin"
PATHS = {
    "/v1/chat/completions": "POST",
    "/v1/models": "GET",
    "/v1/sessions": "POST",
    "/v1/embed-tokens": "POST",
    "/v1/sessions/0191a8a0-0000-7000-8000-000000000000": "GET",
    "/v1/sessions/0191a8a0-0000-7000-8000-000000000000/events": "GET",
    "/v1/sessions/0191a8a0-0000-7000-8000-000000000000/stop": "POST",
    "/v1/sessions/0191a8a0-0000-7000-8000-000000000000/ack": "POST",
}


def preflight(house: House, path: str, origin: str, method: str = "POST") -> httpx.Response:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "authorization,content-type,idempotency-key",
    }
    return house.ask("OPTIONS", path, headers=headers)


def never_with_credentials(answer: httpx.Response) -> None:
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers.get(ALLOW) != "*"
    assert "origin" in answer.headers["vary"].lower()


def test_preflights(house: House) -> None:
    for path, method in PATHS.items():
        for origin in (SHOP, NEWS):
            answer = preflight(house, path, origin, method)
            assert answer.status_code == 204
            assert answer.headers[ALLOW] == origin
            assert method in answer.headers["access-control-allow-methods"]
            assert "authorization" in answer.headers["access-control-allow-headers"]
            never_with_credentials(answer)
        for origin in (
            EVIL,
            "null",
            f"{SHOP}.evil.example",
            f"{SHOP}:444",
            "http://shop.example",
            "*",
        ):
            answer = preflight(house, path, origin, method)
            assert (answer.status_code, code_of(answer)) == (403, "origin_not_allowed"), origin
            assert ALLOW not in answer.headers
            never_with_credentials(answer)
    # What runs the gateway is nobody's page.
    for path in ("/healthz", "/readyz", "/metrics"):
        assert preflight(house, path, SHOP, "GET").status_code == 403
        assert house.ask("GET", path, headers={"Origin": SHOP}).status_code == 403
        assert house.ask("GET", path).status_code == 200
    # A list of names that is none is not repeated.
    odd = {
        "Origin": SHOP,
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "<x>",
    }
    assert (
        "access-control-allow-headers"
        not in house.ask("OPTIONS", "/v1/models", headers=odd).headers
    )


def test_answers_are_for_the_pages_of_their_tenant(house: House) -> None:
    token = house.token()
    for path, method in PATHS.items():
        answer = house.ask(method, path, token, json=request(), headers={"Origin": SHOP})
        assert answer.headers[ALLOW] == SHOP, path
        exposed = answer.headers["access-control-expose-headers"].lower()
        for name in ("x-session-id", "x-request-id", "x-server-time", "retry-after"):
            assert name in exposed
        never_with_credentials(answer)
        # Another tenant's page, nobody's page, a sandboxed frame: with a good token, too.
        for origin in (NEWS, EVIL, "null"):
            answer = house.ask(method, path, token, json=request(), headers={"Origin": origin})
            assert (answer.status_code, code_of(answer)) == (403, "origin_not_allowed"), path
            assert ALLOW not in answer.headers
    streamed = house.chat(token, headers={"Origin": SHOP}, stream=True)
    assert streamed.headers[ALLOW] == SHOP
    assert streamed.text.endswith("data: [DONE]\n\n")
    # Servers and apps send none; our own pages may use everything.
    assert ALLOW not in house.chat(token).headers
    assert house.chat(token, headers={"Origin": house.own}).status_code == 200
    # Before it is known who asks, pages of any tenant may read what is wrong.
    for origin in (SHOP, NEWS):
        answer = house.ask("GET", "/v1/models", "ub-embed-x", headers={"Origin": origin})
        assert (answer.status_code, answer.headers[ALLOW]) == (401, origin)
    twice = [("Origin", SHOP), ("Origin", EVIL), ("Authorization", f"Bearer {token}")]
    assert house.http.get(f"{house.url}/v1/models", headers=twice).status_code == 403


def test_a_bound_token_is_good_on_its_origin_only(house: House) -> None:
    house.stack.sql(
        "UPDATE streaming_tenant SET allowed_origins = allowed_origins || '[\"https://two.example\"]'"
        " WHERE name = 'acme'"
    )
    wait_for(house, "https://two.example")
    token = house.token(origin=SHOP)
    for headers, status in (
        ({"Origin": SHOP}, 200),
        ({"Origin": house.own}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "https://two.example"}, 403),
        ({}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ):
        assert house.ask("GET", "/v1/models", token, headers=headers).status_code == status, headers
    assert house.ask(
        "GET", "/v1/models", house.token(), headers={"Origin": "https://two.example"}
    ).is_success


def test_stream_tokens_are_for_the_tenants_pages(house: House) -> None:
    made = house.ask("POST", "/v1/sessions", house.token(), json=request()).json()
    url = f"{made['events_url']}?stream_token={made['stream_token']}"
    assert house.ask("GET", url).status_code == 200
    assert house.ask("GET", url, headers={"Origin": SHOP}).headers[ALLOW] == SHOP
    answer = house.ask("GET", url, headers={"Origin": NEWS})
    assert (answer.status_code, ALLOW in answer.headers) == (403, False)


def test_stream_tokens_follow_what_the_session_was_begun_with(house: House) -> None:
    house.stack.sql(
        "UPDATE streaming_tenant SET allowed_origins = %s::jsonb WHERE name = 'acme'",
        json.dumps([SHOP, "https://two.example"]),
    )
    wait_for(house, "https://two.example")
    minted = house.mint(origin=SHOP)
    key = house.stack.api_key("acme")

    def begun(credential: str) -> str:
        made = house.ask(
            "POST", "/v1/sessions", credential, json=request(), headers={"Origin": SHOP}
        ).json()
        return f"{made['events_url']}?stream_token={made['stream_token']}"

    bound, by_key = begun(minted["token"]), begun(key)
    for headers, status in (
        ({"Origin": SHOP}, 200),
        ({"Origin": house.own}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "https://two.example"}, 403),
        ({}, 403),
    ):
        assert house.ask("GET", bound, headers=headers).status_code == status, headers
        polled = house.ask("GET", f"{bound}&wait=0", headers=headers)
        assert polled.status_code == status, headers
    assert house.ask("GET", by_key, headers={"Origin": "https://two.example"}).status_code == 200
    house.ask("DELETE", f"/v1/embed-tokens/{minted['id']}", house.key)
    house.stack.sql("UPDATE streaming_apikey SET revoked_at = now() WHERE prefix = %s", key[:10])
    for url in (bound, by_key):
        answer = house.ask("GET", url, headers={"Origin": SHOP})
        assert (answer.status_code, code_of(answer)) == (401, "invalid_api_key")


async def test_one_reading_serves_all_who_ask_meanwhile(house: House) -> None:
    """Also when it fails: with the database away nobody waits for the failures of others."""
    asked = 0

    class Counting(AsyncConnectionPool[Any]):
        def connection(self, timeout: float | None = None) -> Any:
            nonlocal asked
            asked += 1
            return super().connection(timeout)

    async def ask_all(known: AllowedOrigins, url: str) -> list[Any]:
        async with Counting(url, min_size=0, max_size=2, timeout=1, open=False) as pool:
            asks = (known.has(pool, origin) for origin in (SHOP, EVIL) * 10)
            return await asyncio.gather(*asks, return_exceptions=True)

    known = AllowedOrigins()
    failures = await ask_all(known, "postgresql://x:x@127.0.0.1:1/x")
    assert {type(failure) for failure in failures} == {PoolTimeout}
    assert asked == 1
    assert await ask_all(known, house.stack.database_url) == [True, False] * 10
    assert asked == 2


def test_cookies_are_for_our_own_pages(house: House) -> None:
    token = house.token("cookie-user")
    csrf = _get_new_csrf_string()
    cookie = {"Cookie": f"unbroken_token={token}; csrftoken={csrf}"}
    own = {**cookie, "Sec-Fetch-Site": "same-origin"}
    by_origin = {**cookie, "Origin": house.own}
    assert house.ask("GET", "/v1/models", headers=own).status_code == 200
    assert house.ask("GET", "/v1/models", headers=by_origin).status_code == 200
    for headers in (
        cookie,
        {**cookie, "Sec-Fetch-Site": "none"},
        {**cookie, "Sec-Fetch-Site": "same-site"},
        {**cookie, "Sec-Fetch-Site": "cross-site", "Origin": SHOP},
        {**cookie, "Origin": SHOP, "X-CSRFToken": csrf},
        {**cookie, "Sec-Fetch-Site": "cross-site", "Origin": house.own, "X-CSRFToken": csrf},
    ):
        for method, path in (("GET", "/v1/models"), ("POST", "/v1/sessions")):
            answer = house.ask(method, path, json=request(), headers=headers)
            assert (answer.status_code, code_of(answer)) == (403, "origin_not_allowed"), headers
    for headers in (own, by_origin):
        for wrong in (
            {},
            {"X-CSRFToken": ""},
            {"X-CSRFToken": _get_new_csrf_string()},
            {"X-CSRFToken": "x"},
        ):
            answer = house.ask("POST", "/v1/sessions", json=request(), headers={**headers, **wrong})
            assert (answer.status_code, code_of(answer)) == (403, "csrf_failed"), wrong
        good = {**headers, "X-CSRFToken": csrf}
        assert house.ask("POST", "/v1/sessions", json=request(), headers=good).status_code == 201
    # No API key is taken from a cookie, and a credential that is sent wins.
    jar = {
        "Cookie": f"unbroken_token={house.key}; csrftoken={csrf}",
        "Sec-Fetch-Site": "same-origin",
    }
    assert house.ask("GET", "/v1/models", headers=jar).status_code == 401
    assert house.ask("GET", "/v1/models", "wrong", headers=own).status_code == 401


def test_the_cookie_that_pages_are_given(house: House) -> None:
    from django.http import HttpResponse
    from django.utils import timezone

    from streaming.views.embed import set_token_cookie

    response = HttpResponse()
    set_token_cookie(response, "ub-embed-x", timezone.now())
    cookie = SimpleCookie(response.cookies.output(header=""))["unbroken_token"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"


def test_the_page_for_frames(house: House) -> None:
    page = house.ask("GET", "/embed/acme/")
    policy = page.headers["content-security-policy"]
    assert f"frame-ancestors 'self' {SHOP}" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "x-frame-options" not in page.headers
    assert f'content="{SHOP}' in page.text
    assert "<script>" not in page.text
    house.stack.api_key("quiet")
    assert (
        "frame-ancestors 'none'"
        in house.ask("GET", "/embed/quiet/").headers["content-security-policy"]
    )
    assert house.ask("GET", "/embed/nobody/").status_code == 404
    assert house.ask("GET", "/").headers["x-frame-options"] == "DENY"


def test_modules_can_be_loaded_from_anywhere(house: House) -> None:
    for name in sorted(path.name for path in Path("streaming/static/streaming").glob("*.js")):
        answer = house.ask("GET", f"/static/streaming/{name}", headers={"Origin": EVIL})
        assert answer.headers[ALLOW] == "*"
        assert answer.headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://Shop.Example", "https://shop.example"),
        ("https://shop.example/", "https://shop.example"),
        ("https://shop.example:443", "https://shop.example"),
        ("http://shop.example:8080", "http://shop.example:8080"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443"),
        ("http://localhost:3000", "http://localhost:3000"),
    ],
)
def test_origins_are_spelled_as_browsers_spell_them(text: str, origin: str) -> None:
    assert origin_of(text) == origin
    assert origin_of(origin) == origin


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "*", "shop.example", "https://", "https://*.shop.example", "ftp://shop.example",
        "https://shop.example/path", "https://shop.example?x", "https://shop.example#x",
        "https://ann@shop.example", "https://shop.example:port", "https://shop.example:99999",
        "https://shop .example", "https://shop.example\r\nx: y", "https://sh\top.example",
        "https://shop..example", "https://shop.example;script-src", "https://a.example https://b.example",
        "javascript:alert(1)", "https://" + "a" * 300, "https://-shop.example", "https://shop.example\\@evil",
    ],
)  # fmt: skip
def test_what_is_no_origin(text: str) -> None:
    with pytest.raises(ValueError):
        origin_of(text)
    tenant = Tenant(name="t", allowed_origins=[text])
    if text:
        with pytest.raises(ValidationError):
            tenant.clean()


def test_one_a_line() -> None:
    assert origins_of(f"{SHOP}/\r\n\n  {SHOP} \n{NEWS}") == [SHOP, NEWS]
    with pytest.raises(ValueError, match=r"^nonsense: "):
        origins_of(f"{SHOP}\nnonsense")


def wait_for(house: House, origin: str) -> None:
    """Gateways take notice of a new origin within ``AUTH_CACHE_SECONDS``."""
    for _ in range(1000):
        if preflight(house, "/v1/models", origin).status_code == 204:
            return
    raise AssertionError(f"{origin} stays unknown")
