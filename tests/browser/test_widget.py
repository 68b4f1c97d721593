"""The chat widget on a product's page: asked, interrupted, reloaded, stopped, and read to the end."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from functools import partial

import pytest
from playwright.async_api import Browser, Page, Route, WebSocket, expect

from tests.browser.widget import Shop, Window, open_shop, script, window

pytestmark = pytest.mark.browser

QUESTION = "Tell me something [[tokens={}]][[alphabet={}]]"
LONG = QUESTION.format(300, "plain")
LONGER = QUESTION.format(700, "plain")
SHORT = QUESTION.format(12, "plain")


@pytest.fixture(scope="module")
def _shop() -> Iterator[Shop]:
    with open_shop() as shop:
        yield shop


@pytest.fixture
def shop(_shop: Shop) -> Shop:
    """Both engines are there again, whatever the test before has done to them."""
    for engine in _shop.engines.values():
        if not engine.is_alive:
            engine.restart()
    return _shop


def words(text: str) -> str:
    """What of an answer is shown as it is: Markdown eats white space and a leading dash."""
    return " ".join(text.split()).removeprefix("- ")


async def is_whole(view: Window) -> None:
    """What is shown is what is stored."""
    await view.finished()
    session = await view.session()
    assert words(await view.shown()) == words(view.shop.stored(session))


async def test_an_answer_on_a_page_that_allows_nothing_of_its_own(
    browser: Browser, shop: Shop
) -> None:
    async with window(browser, shop) as view:
        page = view.page
        launcher = view.launcher
        await expect(launcher).to_have_attribute("aria-expanded", "false")
        assert await page.locator("script[data-token]").count() == 0
        assert await view.complaints() == []

        # By keyboard alone.
        await page.keyboard.press("Tab")
        await expect(launcher).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(launcher).to_have_attribute("aria-expanded", "true")
        await expect(page.get_by_role("dialog", name="Chat")).to_be_visible()
        await expect(view.question).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(view.panel).to_be_hidden()
        await expect(launcher).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.type("One line")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type(LONG)
        assert (await view.question.input_value()).startswith("One line\nTell")
        # An input method that asks which word was meant is answered with Enter.
        await view.question.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
        await expect(view.answer).to_have_count(0)
        await page.keyboard.press("Enter")
        await expect(view.question).to_have_value("")
        log = page.get_by_role("log")
        await expect(log).to_have_attribute("aria-live", "off")
        await expect(log).to_have_attribute("aria-busy", "true")
        await view.words(5)
        await expect(view.status).to_have_text(re.compile("Answer started"))
        assert await view.complaints() == []

        await view.finished()
        await expect(view.status).to_have_text(re.compile(r"Answer finished, \d+ words"))
        await is_whole(view)
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            assert await view.complaints() == [], scheme

        # What can be done with it comes next; the launcher is at the end.
        await page.keyboard.press("Shift+Tab")
        await expect(view.answer.get_by_role("button", name="Answer again")).to_be_focused()
        for width in (1280, 390):
            await page.set_viewport_size({"width": width, "height": 700})
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            await expect(view.question).to_be_in_viewport()


async def test_a_killed_engine_a_reload_and_a_lost_connection(browser: Browser, shop: Shop) -> None:
    before = shop.sessions()
    async with window(browser, shop, complains=True) as view:
        await view.ask(LONGER)
        await view.words(10)
        await watch_states(view)
        shop.kill_answering()
        await view.words(30)
        assert "recovering" in await states(view)

        await view.page.reload()
        await view.launcher.click()
        await expect(view.chat.locator(".question")).to_have_text(LONGER)
        await view.words(30)
        await watch_states(view)
        await view.page.context.set_offline(True)
        await expect(view.chat.locator(".offline")).to_be_visible()
        await view.page.context.set_offline(False)
        await expect(view.chat.locator(".offline")).to_be_hidden()
        await is_whole(view)
        assert shop.sessions() == before + 1, "nothing was asked twice"

        # A conversation goes on after a reload, and what is over is not told again.
        await view.page.reload()
        await view.launcher.click()
        await view.finished()
        await view.words(100)
        assert await view.events("unbroken:message") == []
        await view.ask(SHORT)
        await is_whole(view)
        await expect(view.chat.locator(".answer")).to_have_count(2)


STATES = """log => {
  window.states = new Set();
  const note = () => log.querySelectorAll(".state").forEach((one) => window.states.add(one.dataset.state));
  new MutationObserver(note).observe(log, { subtree: true, attributes: true, childList: true });
}"""


async def watch_states(view: Window) -> None:
    await view.chat.locator(".log").evaluate(STATES)


async def states(view: Window) -> list[str]:
    return await view.page.evaluate("[...window.states]")


async def test_stop_answer_again_and_copy(browser: Browser, shop: Shop) -> None:
    async with window(browser, shop, permissions=["clipboard-read", "clipboard-write"]) as view:
        page = view.page
        await view.ask(LONG)
        await view.words(8)
        await page.get_by_role("button", name="Stop").focus()
        await page.keyboard.press("Enter")
        await expect(view.answer).to_have_attribute("aria-busy", "false")
        await expect(view.answer.locator(".state")).to_have_text("Stopped")
        await expect(view.question).to_be_focused()
        ((stopped,),) = [[event["detail"]] for event in await view.events("unbroken:stopped")]
        first = await settled(view, stopped["session"])
        assert shop.state(stopped["session"]) == "stopped"

        await page.get_by_role("button", name="Answer again").click()
        await view.words(8)
        await page.get_by_role("button", name="Stop").click()
        second = (await view.events("unbroken:stopped"))[1]["detail"]["session"]
        assert second != stopped["session"]
        await settled(view, second)
        await expect(view.answer.locator(".count")).to_have_text("2 / 2")
        await page.get_by_role("button", name="Previous answer").click()
        assert await view.shown() == first

        await view.answer.get_by_role("button", name="Copy").click()
        await expect(view.answer.get_by_role("button", name="Copied")).to_be_visible()
        await expect(view.status).to_have_text(re.compile("Copied"))
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert words(copied) == words(first)
        await expect(view.answer.get_by_role("button", name="Copy")).to_be_visible()

        # The reader's choice is what a reload shows.
        await page.reload()
        await view.launcher.click()
        await view.finished()
        assert words(await view.shown()) == words(first)
        await page.get_by_role("button", name="New chat").click()
        await expect(view.chat.locator(".message")).to_have_count(0)
        await page.reload()
        await view.launcher.click()
        await expect(view.chat.locator(".message")).to_have_count(0)


async def settled(view: Window, session: str) -> str:
    """The text of a stopped answer, once the page has all of it."""
    async with asyncio.timeout(20):
        while words(await view.shown()) != words(view.shop.stored(session)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return await view.shown()


async def test_errors_have_a_reference_and_a_second_try(browser: Browser, shop: Shop) -> None:
    async with window(browser, shop, complains=True) as view:
        await view.ask(LONGER)
        await view.words(8)
        # The client comes back by itself, until the gateway has given the answer up.
        for engine in shop.engines.values():
            engine.set_fault(kind="truncated", after_tokens=0, times=-1)
        shop.kill_answering()
        await view.finished()
        notice = view.answer.locator(".notice")
        await expect(notice).to_contain_text("Something went wrong.")
        await expect(notice).to_contain_text(re.compile(r"Reference [A-Z0-9]{3}-[A-Z0-9]{3}"))
        await expect(view.status).to_contain_text("The answer failed")
        (event,) = await view.events("unbroken:error")
        assert event["detail"]["reference"] in await notice.inner_text()
        for scheme in ("light", "dark"):
            await view.page.emulate_media(color_scheme=scheme)
            assert await view.complaints() == [], scheme
        for engine in shop.engines.values():
            if engine.is_alive:
                engine.clear_faults()
        async with asyncio.timeout(90):  # the gateway has yet to trust its engine again
            while await notice.is_visible():
                await notice.get_by_role("button", name="Try again").click()
                await view.finished()
        await is_whole(view)
        await expect(view.answer.locator(".body")).to_have_count(1)


async def test_a_secret_key_is_refused_aloud(browser: Browser, shop: Shop) -> None:
    asked: list[str] = []

    async def prepare(page: Page) -> None:
        page.on("request", lambda request: asked.append(json.dumps(request.headers)))

    tag = script(shop, token="ub-live-" + "s" * 43)
    async with window(browser, shop, head=tag, complains=True, prepare=prepare) as view:
        await view.launcher.click()
        await expect(view.panel).to_contain_text("it was given a secret key")
        await expect(view.question).to_be_disabled()
        assert any("secret API key" in problem for problem in view.problems)
        assert not any("ub-live" in headers for headers in asked)
        assert (
            await view.page.evaluate("document.documentElement.outerHTML.includes('ub-live')")
            is False
        )


async def test_two_on_one_page_in_two_languages(browser: Browser, shop: Shop) -> None:
    """Each with its own reader, conversation, direction and strings."""
    head = f'<script type="module" src="{shop.url}/static/streaming/widget.js"></script>'
    body = (
        f'<unbroken-chat inline lang="ar" token="{shop.token("ann")}"></unbroken-chat>'
        f'<unbroken-chat inline lang="ja" theme="dark" token="{shop.token("ben")}" title="案内">'
        "</unbroken-chat>"
    )
    async with window(browser, shop, head=head, body=body) as view:
        arabic, japanese = (view.page.locator("unbroken-chat").nth(n) for n in (0, 1))
        await expect(arabic.locator(".root")).to_have_attribute("dir", "rtl")
        await expect(arabic.get_by_role("button", name="إرسال")).to_be_visible()
        await expect(japanese.get_by_role("region", name="案内")).to_be_visible()
        for one, alphabet in ((arabic, "plain"), (japanese, "cjk")):
            await one.locator("textarea").fill(QUESTION.format(40, alphabet))
            await one.locator("textarea").press("Enter")
        for one, said in ((arabic, "انتهت الإجابة"), (japanese, "回答が終わりました")):
            await expect(one.get_by_role("status")).to_contain_text(said, timeout=60_000)
        told = await view.events("unbroken:message")
        answers = [event["detail"] for event in told if event["detail"]["role"] == "assistant"]
        shown = [
            words(await one.locator(".answer .body").evaluate("body => body.textContent"))
            for one in (arabic, japanese)
        ]
        stored = {words(shop.stored(answer["session"])) for answer in answers}
        assert {re.sub(r"\s", "", text) for text in shown} == {
            re.sub(r"\s", "", text) for text in stored
        }
        assert await view.complaints() == []

        # A page may say things its own way, at any time.
        await view.page.evaluate(
            """async (url) => {
              const { addStrings } = await import(url);
              addStrings("ar", { send: "أرسل الآن" });
            }""",
            f"{shop.url}/static/streaming/widget.js",
        )
        await expect(arabic.get_by_role("button", name="أرسل الآن")).to_be_visible()
        await view.page.reload()
        await expect(arabic.locator(".answer")).to_have_count(1)
        await expect(japanese.locator(".answer")).to_have_count(1)


async def test_a_page_of_another_origin_whose_token_runs_out(browser: Browser, shop: Shop) -> None:
    origin = "http://shop.localhost:9999"
    shop.stack.sql(
        "UPDATE streaming_tenant SET allowed_origins = %s::jsonb WHERE name = 'acme'",
        json.dumps([origin]),
    )
    minted: list[str] = []

    async def prepare(page: Page) -> None:
        async def mint(route) -> None:
            minted.append(shop.token(origin=origin))
            await route.fulfill(json={"token": minted[-1]})

        await page.route("**/chat-token", mint)

    tag = script(shop, token="ub-embed-worn-out", token_url="/chat-token")
    policy = "default-src 'none'; script-src {gateway}; style-src 'none'; connect-src 'self' {gateway} {socket}"
    async with window(
        browser, shop, head=tag, origin=origin, policy=policy, prepare=prepare, complains=True
    ) as view:
        await view.ask(SHORT)
        await is_whole(view)
        assert len(minted) == 1


def reader(token: str) -> str:
    """Of a token what tells its end user from others."""
    payload = token.removeprefix("ub-embed-").split(".")[0]
    _, _, digest = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert re.fullmatch("[0-9a-f]{16}", digest)
    return digest


async def test_readers_of_one_browser_see_nothing_of_each_other(
    browser: Browser, shop: Shop
) -> None:
    """The page names no conversation; who comes back, with another token, finds her own."""
    origin = "http://shop.localhost:9999"
    shop.stack.sql(
        "UPDATE streaming_tenant SET allowed_origins = %s::jsonb WHERE name = 'acme'",
        json.dumps([origin]),
    )
    hers, his = (
        "Ann's secret [[tokens=12]][[alphabet=plain]]",
        "Bob's [[tokens=12]][[alphabet=plain]]",
    )
    policy = "default-src 'none'; script-src {gateway}; style-src 'none'; connect-src 'self' {gateway} {socket}"
    sent: list[str] = []

    def watch(page: Page) -> None:
        page.on("request", lambda request: sent.append(f"{request.url} {request.post_data}"))

        def listen(socket: WebSocket) -> None:
            socket.on("framesent", lambda data: sent.append(str(data)))

        page.on("websocket", listen)

    async def prepare(page: Page) -> None:
        watch(page)

        async def mint(route: Route) -> None:
            await route.fulfill(json={"token": shop.token(users[-1])})

        await page.route("**/chat-token", mint)

    assert reader(shop.token("ann")) == reader(shop.token("ann")) != reader(shop.token("bob"))
    async with await browser.new_context(reduced_motion="reduce") as context:
        visit = partial(
            window, browser, shop, origin=origin, policy=policy, context=context, prepare=prepare
        )
        users = ["ann"]
        head = (
            f'<script type="module" src="{shop.url}/static/streaming/widget.js"'
            ' data-token-url="/chat-token"></script>'
        )
        async with visit(head=head) as view:
            await view.ask(hers)
            await is_whole(view)
            session = await view.session()

        users.append("bob")
        before, sent[:] = shop.sessions(), []
        for tag in (head, script(shop, token=shop.token("bob"))):
            async with visit(head=tag) as view:
                await view.launcher.click()
                await expect(view.question).to_be_enabled()
                await view.ask(his)
                await expect(view.chat.locator(".question").last).to_have_text(his)
                await view.finished()
                assert hers not in await view.chat.locator(".log").inner_text()
        assert shop.sessions() == before + 2
        assert sent
        assert not any("Ann" in one or session in one for one in sent)

        users.append("ann")
        before = shop.sessions()
        async with visit(head=head) as view:
            await view.launcher.click()
            await expect(view.chat.locator(".question")).to_have_text([hers])
            await view.finished()
            assert words(await view.shown()) == words(shop.stored(session))
            # The page's reader has changed under it.
            await view.question.fill("a draft")
            await view.chat.evaluate("(chat, token) => (chat.token = token)", shop.token("bob"))
            await expect(view.chat.locator(".question")).to_have_text([his, his])
            await expect(view.question).to_have_value("")
            await view.chat.evaluate("(chat, token) => (chat.token = token)", shop.token("ann"))
            await expect(view.chat.locator(".question")).to_have_text([hers])
        assert shop.sessions() == before, "nothing was asked twice"


async def test_a_page_that_is_not_allowed_says_so(browser: Browser, shop: Shop) -> None:
    warned: list[str] = []

    async def prepare(page: Page) -> None:
        # The modules are anybody's; the API is not.
        page.on("console", lambda m: warned.append(m.text) if m.type == "warning" else None)

    policy = (
        "default-src 'none'; script-src {gateway}; style-src 'none'; connect-src {gateway} {socket}"
    )
    async with window(
        browser, shop, origin="http://other.localhost:9999", policy=policy, prepare=prepare,
        complains=True,
    ) as view:  # fmt: skip
        await view.ask(SHORT)
        state = view.answer.locator(".state")
        await expect(state).to_have_text(
            "The chat cannot be reached. Still trying…", timeout=60_000
        )
        await expect(view.answer).to_have_attribute("aria-busy", "true")
        await expect(view.status).to_contain_text("cannot be reached")
        assert [text for text in warned if "allowed origins" in text] == [
            "unbroken-chat: the gateway cannot be reached. If this page's origin is not among the "
            "tenant's allowed origins, the browser hides the gateway's answer."
        ]
