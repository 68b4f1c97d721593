"""The first page in a real browser: ask, kill the engine, read the whole answer."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import expect

from tests.browser.conftest import Visit
from tests.durability.stored import stored_log
from tests.engine_simulator.model import expected_answer

pytestmark = pytest.mark.browser

# A question whose answer has 150 tokens of plain words.
QUESTION = "Tell me something long [[tokens=150]][[alphabet=plain]]"
SHOWN = """() => {
  const body = [...document.querySelectorAll(".message.assistant .body")].at(-1)?.cloneNode(true);
  if (!body) return "";
  for (const mark of body.querySelectorAll(".seam")) mark.remove();
  return body.textContent;
}"""


def words(text: str) -> str:
    """What of an answer the page shows as it is: Markdown eats white space and a leading dash."""
    return " ".join(text.split()).removeprefix("- ")


async def ask(visit: Visit, text: str = QUESTION) -> None:
    await visit.page.get_by_label("Your message").fill(text)
    await visit.page.keyboard.press("Enter")


async def shown(visit: Visit) -> str:
    """The text of the last answer, without its marks."""
    return await visit.page.evaluate(SHOWN)


async def shown_words(visit: Visit) -> int:
    return len((await shown(visit)).split())


async def wait_for_words(visit: Visit, count: int) -> None:
    """Asked again and again from here: the page's own policy forbids it to evaluate strings."""
    async with asyncio.timeout(15):
        while await shown_words(visit) < count:  # noqa: ASYNC110  it happens in the browser
            await asyncio.sleep(0.02)


def session(visit: Visit) -> tuple[Any, ...]:
    """The only session there is: id, state, failovers, seed."""
    rows = visit.demo.stack.sql("SELECT id, state, failovers, seed FROM streaming_streamsession")
    assert len(rows) == 1
    return rows[0]


async def test_an_engine_killed_in_the_midst_is_a_mark_in_a_whole_answer(visit: Visit) -> None:
    page = visit.page
    await ask(visit)
    await wait_for_words(visit, 15)
    serving = page.locator(".node.serving")
    killed = await serving.get_by_role("heading").inner_text()
    survivor = "node-b" if killed == "node-a" else "node-a"
    await serving.get_by_role("button", name=f"Kill engine {killed}").click()
    visit.demo.engines[killed].wait_dead()
    assert await shown_words(visit) < 120, "it was to be killed in the midst of the answer"
    status = page.get_by_role("status")
    await expect(status).to_have_text(re.compile(r"Answer finished: 150 tokens; 1 interruption"))

    session_id, state, failovers, seed = session(visit)
    assert (state, failovers) == ("completed", 1)
    stored = stored_log(visit.demo.stack, session_id)
    question = [{"role": "user", "content": QUESTION}]
    whole = expected_answer(question, temperature=0.7, seed=seed, max_tokens=400)
    assert stored.text == whole.text
    assert words(await shown(visit)) == words(stored.text)

    mark = page.locator(".message.assistant .seam")
    await expect(mark).to_have_count(1)
    await expect(mark).to_be_visible()
    note = await mark.get_attribute("aria-label")
    assert note is not None
    at = re.match(rf"Seam: {killed} died after token (\d+); {survivor} continued", note)
    assert at is not None, note
    assert note.endswith("grade exact")
    before = await page.evaluate(
        """() => {
          const range = document.createRange();
          range.setStart(document.querySelector(".message.assistant .body"), 0);
          range.setEndBefore(document.querySelector(".seam"));
          return range.toString();
        }"""
    )
    assert words(before) == words(stored.between(0, int(at[1])))
    await mark.hover()
    await expect(mark.locator(".tip")).to_be_visible()

    log = page.locator("#log")
    await expect(log).to_contain_text(f"You killed {killed}.")
    await expect(log).to_contain_text(f"{survivor} continued from token")
    dead = page.locator(".node", has_text=killed)
    await expect(dead.get_by_role("button")).to_be_disabled()
    await page.get_by_label("Show seams").uncheck()
    await expect(mark).to_be_hidden()


async def test_the_stop_button_ends_the_answer_and_its_session(visit: Visit) -> None:
    page = visit.page
    await ask(visit)
    await wait_for_words(visit, 5)
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("status")).to_have_text("You stopped the answer.")
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    count = await shown_words(visit)
    await page.wait_for_timeout(300)
    assert await shown_words(visit) == count
    assert session(visit)[1] == "stopped"


async def test_a_reload_and_a_killed_gateway_lose_nothing(visit: Visit) -> None:
    page = visit.page
    await ask(visit)
    await wait_for_words(visit, 10)
    await page.reload()
    await expect(page.locator(".message.user")).to_have_text(QUESTION)
    await wait_for_words(visit, 25)
    gateway = visit.demo.stack.gateway()
    gateway.kill()
    await expect(page.get_by_role("status")).to_contain_text("Reconnecting")
    gateway.start_again()
    await expect(page.get_by_role("status")).to_contain_text("Answer finished: 150 tokens")
    session_id, state, _, _ = session(visit)
    assert state == "completed"
    assert words(await shown(visit)) == words(stored_log(visit.demo.stack, session_id).text)
    # What the browser says of a server that is not there is to be expected.
    visit.problems[:] = [one for one in visit.problems if "net::ERR" not in one]


async def test_shift_enter_breaks_the_line_and_enter_sends(visit: Visit) -> None:
    page = visit.page
    box = page.get_by_label("Your message")
    await box.fill("one")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("two [[tokens=3]][[alphabet=plain]]")
    assert (await box.input_value()).startswith("one\ntwo")
    await page.keyboard.press("Enter")
    await expect(box).to_have_value("")
    await expect(page.get_by_role("status")).to_contain_text("no interruption")
    assert (await page.locator(".message.user").inner_text()).startswith("one\ntwo")


async def test_nothing_sticks_out_at_any_width(visit: Visit) -> None:
    page = visit.page
    await ask(visit, "x" * 300 + " [[tokens=60]][[alphabet=plain]]")
    await expect(page.get_by_role("status")).to_contain_text("Answer finished")
    for width in (1280, 768, 390):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await expect(page.get_by_label("Your message")).to_be_in_viewport()
        for card in await page.locator(".node").all():
            await card.scroll_into_view_if_needed()
            await expect(card.get_by_role("button")).to_be_in_viewport()
