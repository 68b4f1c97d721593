"""A browser tab that follows answers with the client module, and shows what it is told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx
from playwright.async_api import BrowserContext, Page

from tests.durability.reader import question, until
from tests.engine_simulator.model import expected_answer
from tests.stack import Stack

PAGE = "/static/streaming/unbroken.js"
"""Any page of the gateway's origin will do; this one runs no script of its own."""

SET_UP = """async ([token, options]) => {
  const { UnbrokenClient } = await import("/static/streaming/unbroken.js");
  const out = document.createElement("pre");
  document.body.replaceChildren(out);
  const tab = window.tab = { states: [], pieces: [], refreshed: 0, out };
  if (options.fresh) {
    options.refreshToken = async () => { tab.refreshed += 1; return options.fresh; };
  }
  tab.client = new UnbrokenClient({ token, ...options });
  tab.show = (answer) => {
    tab.answer = answer;
    answer.addEventListener("text", ({ detail }) => {
      tab.pieces.push(detail.seq);
      out.append(detail.text);
    });
    answer.addEventListener("state", ({ detail }) => tab.states.push(detail));
  };
}"""


@dataclass
class Tab:
    """One tab. ``url``: the gateway, or a proxy before it."""

    page: Page
    stack: Stack
    url: str
    token: str
    options: dict[str, Any] = field(default_factory=dict)

    async def open(self) -> Tab:
        await self.page.goto(self.url + PAGE)
        await self.page.evaluate(SET_UP, [self.token, self.options])
        return self

    async def reload(self) -> None:
        await self.page.reload()
        await self.page.evaluate(SET_UP, [self.token, self.options])

    async def start(self, text: str, tokens: int = 60) -> str:
        """The id of the answer, once ten of its tokens are shown."""
        self.messages = question(text, tokens)
        request = {"model": "sim-model", "messages": self.messages, "temperature": 0}
        await self.page.evaluate("(request) => tab.show(tab.client.start(request))", request)
        await self.shows(10)
        return await self.page.evaluate("tab.answer.id")

    async def resume(self, session_id: str) -> None:
        await self.page.evaluate("(id) => tab.show(tab.client.resume(id))", session_id)

    async def shows(self, seq: int) -> None:
        await self.page.wait_for_function("(seq) => tab.answer.seq >= seq", arg=seq, timeout=60_000)

    async def has_kept_some(self) -> None:
        """Wait until the cache has a part of the answer: it is written after half a second."""
        async with asyncio.timeout(30):
            while not (await self.get("tab.client.sessions()"))[0]["seq"]:  # noqa: ASYNC110  it is in the page
                await asyncio.sleep(0.05)

    async def is_over(self) -> str:
        """Wait for the end; the state that the answer has then."""
        over = "['done', 'stopped', 'failed'].includes(tab.answer.state)"
        await self.page.wait_for_function(over, timeout=90_000)
        return await self.page.evaluate("tab.answer.state")

    async def get(self, expression: str) -> Any:
        return await self.page.evaluate(expression)

    async def must_be_whole(self, session_id: str, messages: Any = None) -> None:
        """Shown is what is stored, each token once; and it was asked for once."""
        state = await self.is_over()
        assert state == "done", await self.get("String(tab.answer.error)")
        expected = expected_answer(messages or self.messages).text
        assert await self.get("tab.out.textContent") == expected
        assert await self.get("tab.answer.text") == expected
        pieces = await self.get("tab.pieces")
        assert pieces == sorted(set(pieces))
        assert await stored(self.stack, session_id, self.token) == expected
        assert sessions_like(self.stack, session_id) == 1


async def stored(stack: Stack, session_id: str, key: str) -> str:
    """The answer as the gateway has it."""
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(timeout=30, headers=headers) as http:
        response = await http.get(f"{stack.gateway().url}/v1/sessions/{session_id}")
        return response.json()["answer"]["text"]


def sessions_like(stack: Stack, session_id: str) -> int:
    """How many sessions there are with the request of this one."""
    ((count,),) = stack.sql(
        "SELECT count(*) FROM streaming_streamsession WHERE request ="
        " (SELECT request FROM streaming_streamsession WHERE id = %s)",
        session_id,
    )
    return count


def state_of(stack: Stack, session_id: str) -> str:
    ((state,),) = stack.sql("SELECT state FROM streaming_streamsession WHERE id = %s", session_id)
    return state


async def is_suspended(stack: Stack, session_id: str) -> None:
    await until(lambda: state_of(stack, session_id) in ("suspended", "completed"), 30)


async def new_tab(
    context: BrowserContext, stack: Stack, token: str, url: str | None = None, **options: Any
) -> Tab:
    page = await context.new_page()
    return await Tab(page, stack, url or stack.gateway().url, token, options).open()
