"""The widget on pages of a product: what they say, how they are served, and what is seen on them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Locator, Page, Route, expect

from tests.durability.stored import stored_log
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

PACE = 60
STRICT = (
    "default-src 'none'; script-src {gateway}; style-src 'none'; connect-src {gateway} {socket}; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
)
SERIOUS = ("serious", "critical")


@dataclass
class Shop:
    """A stack with two engines that tests may kill, and a key for its backend."""

    stack: Stack
    engines: dict[str, SimulatorProcess]
    key: str

    def token(self, user: str = "ann", **order: Any) -> str:
        """An embed token for one end user."""
        answer = httpx.post(
            f"{self.url}/v1/embed-tokens",
            headers={"Authorization": f"Bearer {self.key}"},
            json={"user": user, **order},
        )
        assert answer.status_code == 201, answer.text
        return answer.json()["token"]

    @property
    def url(self) -> str:
        return self.stack.gateway().url

    def stored(self, session: str) -> str:
        return stored_log(self.stack, session).text

    def state(self, session: str) -> str:
        ((state,),) = self.stack.sql(
            "SELECT state FROM streaming_streamsession WHERE id = %s", session
        )
        return state

    def kill_answering(self) -> None:
        """SIGKILL to the engine that is giving an answer."""
        (engine,) = [one for one in self.engines.values() if one.stats()["running"]]
        engine.kill()

    def sessions(self) -> int:
        return self.stack.sql("SELECT count(*) FROM streaming_streamsession")[0][0]


@contextmanager
def open_shop() -> Iterator[Shop]:
    with (
        SimulatorProcess("vllm", pace=PACE) as first,
        SimulatorProcess("llamacpp", pace=PACE) as second,
        Stack(
            engine_nodes=[f"node-a=vllm+{first.url}", f"node-b=llamacpp+{second.url}"],
            env={"HEALTH_INTERVAL": "0.3", "MAX_ATTEMPTS": "3"},
        ) as stack,
    ):
        stack.manage("model_alias", "set", "chat-default", "sim-model")
        yield Shop(stack, {"node-a": first, "node-b": second}, stack.api_key())


@dataclass
class Window:
    """A page with the widget, and all that was complained of in it."""

    page: Page
    shop: Shop
    problems: list[str] = field(default_factory=list)

    @property
    def chat(self) -> Locator:
        return self.page.locator("unbroken-chat").first

    @property
    def launcher(self) -> Locator:
        return self.chat.locator(".launcher")

    @property
    def panel(self) -> Locator:
        return self.chat.locator(".panel")

    @property
    def question(self) -> Locator:
        return self.chat.locator("textarea")

    @property
    def answer(self) -> Locator:
        """The last answer."""
        return self.chat.locator(".answer").last

    @property
    def status(self) -> Locator:
        return self.chat.get_by_role("status")

    async def ask(self, text: str) -> None:
        if not await self.panel.is_visible():
            await self.launcher.click()
        await self.question.fill(text)
        await self.question.press("Enter")

    async def shown(self) -> str:
        return await self.answer.locator(".body").evaluate("body => body.textContent")

    async def words(self, count: int) -> None:
        """Wait until the last answer shows so many words."""
        async with asyncio.timeout(30):
            while len((await self.shown()).split()) < count:  # noqa: ASYNC110  in the browser
                await asyncio.sleep(0.03)

    async def finished(self) -> None:
        await expect(self.answer).to_have_attribute("aria-busy", "false", timeout=60_000)

    async def events(self, name: str) -> list[Any]:
        return await self.page.evaluate("name => window.told.filter((e) => e.name === name)", name)

    async def session(self) -> str:
        """The session of the last answer, which is over."""
        told = [
            *await self.events("unbroken:message"),
            *await self.events("unbroken:stopped"),
            *await self.events("unbroken:error"),
        ]
        return max(told, key=lambda event: event["at"])["detail"]["session"]

    async def complaints(self) -> list[str]:
        """What axe finds serious or critical."""
        results = await Axe().run(
            self.page, options={"resultTypes": ["violations"], "preload": False}
        )
        return [
            f"{found['id']}: {node['html'][:200]}: {node['failureSummary'][:300]}"
            for found in results.response["violations"]
            if found["impact"] in SERIOUS
            for node in found["nodes"][:3]
        ]


LISTEN = """
window.told = [];
for (const name of ["ready", "message", "error", "stopped"]) {
  addEventListener(`unbroken:${name}`, (event) => window.told.push({
    name: event.type, at: performance.now(), detail: event.detail,
  }));
}
"""
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Shop</title>
<meta name="viewport" content="width=device-width, initial-scale=1">{head}</head>
<body><main><h1>A shop</h1><p>Things to buy.</p>{body}</main></body></html>"""


def script(shop: Shop, **data: str) -> str:
    """The tag that product teams paste."""
    options = {"token": data.pop("token", "") or shop.token(), **data}
    said = " ".join(f'data-{name.replace("_", "-")}="{value}"' for name, value in options.items())
    return f'<script type="module" src="{shop.url}/static/streaming/widget.js" {said}></script>'


@asynccontextmanager
async def window(
    browser: Browser,
    shop: Shop,
    *,
    head: str | None = None,
    body: str = "",
    policy: str = STRICT,
    origin: str | None = None,
    context: BrowserContext | None = None,
    complains: bool = False,
    prepare: Callable[[Page], Any] | None = None,
    **options: Any,
) -> AsyncIterator[Window]:
    """A page of ``origin`` (the gateway's own unless said), open. Its complaints fail the test."""
    own = context is None
    context = context or await browser.new_context(
        **{"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", **options}
    )
    page = await context.new_page()
    page.set_default_timeout(20_000)
    view = Window(page, shop)
    page.on("pageerror", lambda error: view.problems.append(str(error)))
    page.on("console", lambda m: view.problems.append(m.text) if m.type == "error" else None)
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": policy.format(
            gateway=shop.url, socket=shop.stack.gateway().websocket_url
        ),
    }
    html = PAGE.format(head=script(shop) if head is None else head, body=body)

    async def serve(route: Route) -> None:
        await route.fulfill(body=html, headers=headers)

    address = f"{origin or shop.url}/shop"
    await page.route(address, serve)
    await page.add_init_script(LISTEN)
    if prepare is not None:
        await prepare(page)
    await page.goto(address)
    await expect(page.locator("unbroken-chat").first).to_be_attached()
    try:
        yield view
    finally:
        await (context if own else page).close()
    assert complains or view.problems == [], json.dumps(view.problems, indent=1)
