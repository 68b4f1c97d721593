"""What a real browser makes of it: pages of an allowed origin, and of one that is not."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from aiohttp import web
from playwright.async_api import Browser, Page

from tests.browser.conftest import browser  # noqa: F401  a fixture
from tests.durability.reader import until
from tests.security.conftest import MODEL, House

pytestmark = pytest.mark.browser

READER = b'["1",1,"00000000000000aa"]'
# Tokens of one reader, as the widget takes them: what a gateway says of them is another matter.
TOKEN = f"ub-embed-{urlsafe_b64encode(READER).decode().rstrip('=')}.from-"

PRODUCT_PAGE = """<!doctype html><title>product</title><iframe id="chat" src="{url}/embed/shop/"></iframe>
<script>
const heard = [];
addEventListener("message", (event) => {{
  if (event.origin !== "{url}") return;
  heard.push(event.data);
  const named = heard.length > 1 && {{conversation: "ada"}};
  event.source.postMessage({{type: "unbroken:token", token: "{token}" + heard.length, ...named}}, event.origin);
}});
</script>"""

FETCHED = """async ([url, token, body]) => {
  const headers = { Authorization: "Bearer " + token, "Content-Type": "application/json" };
  try {
    const answer = await fetch(url + "/v1/chat/completions", { method: "POST", headers, body });
    return [answer.status, answer.headers.get("x-session-id") !== null, await answer.text()];
  } catch (error) {
    return error.name;
  }
}"""
TALKED = """([url, token]) => new Promise((resolve) => {
  const socket = new WebSocket(url, ["unbroken.v1"]);
  let heard = "";
  socket.onopen = () => socket.send(JSON.stringify({ type: "auth", token }));
  socket.onmessage = (event) => {
    heard = JSON.parse(event.data).type;
    if (heard === "ready") socket.close();
  };
  socket.onclose = (event) => resolve([heard, event.code]);
})"""


@dataclass
class Products:
    """Two web servers; the first one's origin is allowed by the tenant ``shop``."""

    good: str
    evil: str
    token: str


@pytest.fixture
async def products(house: House) -> AsyncIterator[Products]:
    async def page(_: web.Request) -> web.Response:
        return web.Response(
            text=PRODUCT_PAGE.format(url=house.url, token=TOKEN), content_type="text/html"
        )

    async with AsyncExitStack() as servers:
        origins = []
        for _ in range(2):
            application = web.Application()
            application.router.add_get("/", page)
            runner = web.AppRunner(application)
            await runner.setup()
            servers.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            origins.append(f"http://localhost:{runner.addresses[0][1]}")
        key = house.stack.api_key("shop")
        house.stack.sql(
            "UPDATE streaming_tenant SET allowed_origins = %s::jsonb WHERE name = 'shop'",
            json.dumps(origins[:1]),
        )
        yield Products(*origins, house.token("ann", key=key))


async def open_page(
    browser: Browser,  # noqa: F811
    url: str,
    problems: list[str] | None = None,
) -> Page:
    page = await browser.new_page()
    if problems is not None:
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    await page.goto(url)
    return page


async def test_pages_of_other_origins(browser: Browser, house: House, products: Products) -> None:  # noqa: F811
    request = {
        "model": MODEL, "stream": True, "messages": [{"role": "user", "content": "hi [[tokens=5]]"}],
    }  # fmt: skip
    asked = [house.url, products.token, json.dumps(request)]
    talked = [house.socket_url, products.token]

    page = await open_page(browser, products.good)

    async def is_answered() -> bool:
        """Once the gateway has taken notice of the new origin."""
        return (await page.evaluate(FETCHED, asked)) != "TypeError"

    for _ in range(100):
        if await is_answered():
            break
    status, has_session, text = await page.evaluate(FETCHED, asked)
    assert (status, has_session) == (200, True)
    assert text.endswith("data: [DONE]\n\n")
    # What is wrong can be read, too.
    status, _, text = await page.evaluate(FETCHED, [house.url, "ub-embed-x", "{}"])
    assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key")
    assert (await page.evaluate(TALKED, talked))[0] == "ready"
    names = await page.evaluate("async (url) => Object.keys(await import(url))", house.url + "/static/streaming/unbroken.js")  # fmt: skip
    assert names

    evil = await open_page(browser, products.evil)
    assert await evil.evaluate(FETCHED, asked) == "TypeError"
    assert await evil.evaluate(TALKED, talked) == ["error", 4403]


async def test_the_frame_takes_its_token_from_the_page_around_it(
    browser: Browser,  # noqa: F811
    house: House,
    products: Products,
) -> None:
    problems: list[str] = []
    page = await open_page(browser, products.good, problems)

    async def has_heard(count: int) -> None:
        await page.wait_for_function(f"heard.length >= {count}")

    await has_heard(1)
    (frame,) = (one for one in page.frames if one.url.endswith("/embed/shop/"))
    token = 'document.getElementById("chat")?.token'
    await frame.wait_for_function(f'{token} === "{TOKEN}1"')
    kept = """["storage", "conversation"].map((name) => document.getElementById("chat").getAttribute(name))"""
    assert await frame.evaluate(kept) == ["memory", None]  # for whoever comes next
    # Another page's messages are nobody's.
    await frame.evaluate('window.postMessage({type: "unbroken:token", token: "forged"}, "*")')
    assert await frame.evaluate('document.getElementById("chat").refreshToken()') == f"{TOKEN}2"
    assert await frame.evaluate(token) == f"{TOKEN}2"
    assert await frame.evaluate(kept) == ["indexeddb", "shop:ada"]
    heard = await page.evaluate("heard")
    assert heard == [{"type": "unbroken:ready"}, {"type": "unbroken:token-needed"}]
    # The widget is there, and nothing of it is against the policy of its page.
    await frame.wait_for_function('document.getElementById("chat").shadowRoot !== null')
    assert [one for one in problems if "favicon" not in one and "404" not in one] == []

    evil = await open_page(browser, products.evil)
    frames = [one for one in evil.frames if one != evil.main_frame]
    await until(lambda: all(one.url.startswith("chrome-error:") for one in frames))
    assert await evil.evaluate("heard.length") == 0
