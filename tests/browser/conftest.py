"""A real Chromium in front of a real gateway with two engines that the page may kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from playwright.async_api import Browser, Page, Route, async_playwright, expect

import streaming
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SWITCHES = [
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Pages that a test makes up have no address of their own, which counts as public.
    "--disable-features=LocalNetworkAccessChecks",
]
STATIC = Path(streaming.__file__).parent / "static" / "streaming"
SITE = "http://modules.localhost"
POLICY = "default-src 'none'; script-src 'self'; require-trusted-types-for 'script'"
expect.set_options(timeout=20_000)  # of five seconds a machine at work makes short ones
PACE = 30  # tokens a second: an answer of 150 leaves time to kill its engine in the midst


@dataclass
class Demo:
    """A stack in demo mode. ``engines`` are its nodes by name."""

    stack: Stack
    engines: dict[str, SimulatorProcess]

    @property
    def url(self) -> str:
        return self.stack.gateway().url

    def note_children(self) -> None:
        """Write down the engines as ``serve`` notes its children, so that the page may kill them."""
        children = {
            name: {
                "pid": engine.pid,
                "created": psutil.Process(engine.pid).create_time(),
                "port": engine.port,
            }
            for name, engine in self.engines.items()
        }
        # The supervisor is this test, which does not count as a running ``serve``.
        state = {"supervisor": {"pid": 1, "created": 0.0}, "children": children}
        path = self.stack.directory / "data" / "run" / "services.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(state))


@dataclass
class Visit:
    """The open page, and all that went wrong in it."""

    page: Page
    demo: Demo
    problems: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


@pytest.fixture
def demo(start_stack) -> Iterator[Demo]:
    with (
        SimulatorProcess("vllm", pace=PACE) as first,
        SimulatorProcess("llamacpp", pace=PACE) as second,
    ):
        stack = start_stack(
            engine_nodes=[f"node-a=vllm+{first.url}", f"node-b=llamacpp+{second.url}"],
            env={"DEMO": "1", "ALLOW_REHEARSAL": "1", "HEALTH_INTERVAL": "0.3"},
        )
        stack.manage("model_alias", "set", "chat-default", "sim-model")
        stack.manage("seed_demo_access")
        demo = Demo(stack, {"node-a": first, "node-b": second})
        demo.note_children()
        yield demo


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield browser
        await browser.close()


@pytest.fixture
async def visit(browser: Browser, demo: Demo) -> AsyncIterator[Visit]:
    """The page with both engines ready. Whatever it complains about fails the test."""
    page = await browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(15_000)
    visit = Visit(page, demo)
    page.on("pageerror", lambda error: visit.problems.append(str(error)))
    page.on("console", lambda m: visit.problems.append(m.text) if m.type == "error" else None)
    page.on("request", lambda request: visit.hosts.add(urlsplit(request.url).netloc))
    await page.goto(demo.url)
    await expect(page.locator(".node[data-state=up]")).to_have_count(2)
    yield visit
    assert visit.problems == []
    assert visit.hosts == {urlsplit(demo.url).netloc}


@pytest.fixture
async def modules(browser: Browser) -> AsyncIterator[Page]:
    """An empty page with the modules beside it."""
    page = await browser.new_page()

    async def serve(route: Route) -> None:
        path = STATIC / route.request.url.removeprefix(SITE).lstrip("/")
        if path.suffix == ".js":
            await route.fulfill(path=path, content_type="text/javascript")
        else:
            await route.fulfill(
                body="<!doctype html><title>x</title>",
                content_type="text/html",
                headers={"Content-Security-Policy": POLICY},
            )

    await page.route(f"{SITE}/**", serve)
    await page.goto(SITE)
    yield page
    assert await page.evaluate("window.hurt === undefined")
    await page.close()
