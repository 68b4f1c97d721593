"""Every kind of page of the admin in a real browser: accessible, quiet, and no wider than its screen.

With what strangers can write at its worst: markup, bidi controls, words without an end.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page, expect
from playwright.async_api import TimeoutError as PlaywrightTimeout

from tests.live.office import PASSWORD, USER
from tests.stack import Stack

pytestmark = pytest.mark.browser

WIDE, NARROW = 1280, 390
SERIOUS = ("serious", "critical")
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
FILL = "import json; from tests.live.office import fill, pages; fill(); print(json.dumps(pages()))"


@dataclass
class Desk:
    stack: Stack
    pages: dict[str, list[str]]
    context: BrowserContext
    problems: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.stack.gateway().url

    async def open(self, path: str = "") -> Page:
        """A new page that notes what goes wrong in it."""
        page = await self.context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: self.problems.append(f"{page.url}: {error}"))
        page.on(
            "console",
            lambda m: self.problems.append(f"{page.url}: {m.text}") if m.type == "error" else None,
        )
        if path:
            await page.goto(f"{self.url}{path}")
        return page


@pytest.fixture(scope="module")
def office() -> Iterator[tuple[Stack, dict[str, list[str]]]]:
    with Stack() as stack:
        yield stack, json.loads(stack.manage("shell", "-v", "0", "-c", FILL))


@pytest.fixture
async def desk(browser: Browser, office) -> AsyncIterator[Desk]:
    """Somebody in Berlin who may do everything, logged in."""
    context = await browser.new_context(
        viewport={"width": WIDE, "height": 900},
        timezone_id="Europe/Berlin",
        # Colours are looked at as they are, not on their way.
        reduced_motion="reduce",
    )
    desk = Desk(*office, context)
    page = await desk.open("/admin/")
    await page.get_by_label("Username").fill(USER)
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.locator("#user-tools")).to_be_visible()
    await page.close()
    yield desk
    await context.close()


async def complaints(page: Page, options: dict[str, Any] | None = None) -> list[str]:
    """What axe finds serious or critical."""
    results = await Axe().run(
        page, options={"resultTypes": ["violations"], "preload": False, **(options or {})}
    )
    return [
        f"{found['id']}: {node['html'][:160]}: {node['failureSummary'][:300]}"
        for found in results.response["violations"]
        if found["impact"] in SERIOUS
        for node in found["nodes"][:3]
    ]


async def overflow(page: Page, width: int) -> int:
    """By how many pixels the page is wider than its window, of this width."""
    await page.set_viewport_size({"width": width, "height": 900})
    with suppress(PlaywrightTimeout):  # it is laid out anew a moment later
        await page.wait_for_function(
            f"innerWidth === {width} && document.documentElement.scrollWidth <= {width}",
            timeout=3000,
        )
    return await page.evaluate(f"document.documentElement.scrollWidth - {width}")


async def test_pages_are_accessible_quiet_and_fit(desk: Desk) -> None:
    page = await desk.open()
    found: dict[str, Any] = {}
    for path in [*desk.pages["kinds"], *desk.pages["lists"]]:
        answer = await page.goto(f"{desk.url}{path}")
        assert answer is not None
        assert answer.status == 200, path
        wrong: dict[str, Any] = {"wide": await overflow(page, WIDE)}
        if path not in desk.pages["lists"]:
            wrong["light"] = await complaints(page)
            await page.emulate_media(color_scheme="dark")
            wrong["dark"] = await complaints(page, COLOURS)
            await page.emulate_media(color_scheme="light")
        wrong["narrow"] = await overflow(page, NARROW)
        if wrong["wide"] > 0 or wrong["narrow"] > 0 or wrong.get("light") or wrong.get("dark"):
            found[path] = wrong
    assert found == {}, json.dumps(found, indent=1)
    assert desk.problems == []


async def test_the_board_without_sockets_and_without_scripts(desk: Desk, browser: Browser) -> None:
    page = await desk.open()
    refused = 0

    async def refuse_once(socket: Any) -> None:
        nonlocal refused
        refused += 1
        if refused == 1:
            await socket.close(code=1011)
        else:
            socket.connect_to_server()

    await page.route_web_socket(re.compile("/ws/admin/live/"), refuse_once)
    await page.goto(f"{desk.url}/admin/live/")
    state = page.locator("#live-state")
    await expect(state).to_have_text("Polling: there is no WebSocket.")
    await expect(page.locator("[data-rows=gateways]")).to_contain_text("alive")
    # It tries again, and then uses it.
    await expect(state).to_have_text("Live, by WebSocket.", timeout=30_000)
    # The database is what it is made from: without any news its figures grow old, visibly.
    await page.context.set_offline(True)
    desk.stack.gateway().stop()
    await expect(state).to_contain_text("Stale", timeout=30_000)
    desk.stack.gateway().cont()
    await page.context.set_offline(False)
    await expect(state).to_have_text(re.compile("^(Live|Polling)"), timeout=60_000)

    plain = await browser.new_context(
        java_script_enabled=False, storage_state=await desk.context.storage_state()
    )
    page = await plain.new_page()
    await page.goto(f"{desk.url}/admin/live/")
    await expect(page.locator("[data-rows=newest]")).to_contain_text("K7Q-4M0")
    await expect(page.get_by_role("link", name="Look again")).to_be_visible()
    await plain.close()


async def test_times_are_in_the_viewers_zone(desk: Desk) -> None:
    sessions = "/admin/streaming/streamsession/"
    page = await desk.open(sessions)
    created = page.locator("#result_list .field-created").first
    await expect(created).to_have_text(re.compile(r"^[\d-]+ [\d:]+ CES?T$"))
    await page.get_by_role("link", name="Times: Europe/Berlin").click()
    await page.get_by_label("Time zone").select_option("UTC")
    await page.get_by_role("button", name="Save").click()
    await expect(page).to_have_url(f"{desk.url}{sessions}")
    await expect(created).to_have_text(re.compile(r"^[\d-]+ [\d:]+ UTC$"))
    assert desk.problems == []
