"""The chat widget on a product's page: asked, interrupted, reloaded, stopped, and read to the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.async_api import Browser, expect

from tests.browser.widget import Shop, open_shop, window

pytestmark = pytest.mark.browser

QUESTION = "Tell me something [[tokens=120]][[alphabet=plain]]"


@pytest.fixture(scope="module")
def _shop() -> Iterator[Shop]:
    with open_shop() as shop:
        yield shop


@pytest.fixture
def shop(_shop: Shop) -> Shop:
    for engine in _shop.engines.values():
        if not engine.is_alive:
            engine.restart()
    return _shop


def words(text: str) -> str:
    """What of an answer is shown as it is: Markdown eats white space and a leading dash."""
    return " ".join(text.split()).removeprefix("- ")


async def test_an_answer_on_a_page_that_allows_nothing_of_its_own(
    browser: Browser, shop: Shop
) -> None:
    async with window(browser, shop) as view:
        await expect(view.launcher).to_have_attribute("aria-expanded", "false")
        await view.ask(QUESTION)
        await view.finished()
        session = await view.session()
        assert words(await view.shown()) == words(shop.stored(session))
