"""Server-sent events that come in pieces, read in a real browser."""

from __future__ import annotations

from itertools import product

import pytest
from playwright.async_api import Page

pytestmark = pytest.mark.browser

EVENTS = """async ([bytes, size]) => {
  const { events } = await import("/sse.js");
  const data = new Uint8Array(bytes);
  const body = new ReadableStream({
    start(controller) {
      for (let at = 0; at < data.length; at += size) controller.enqueue(data.slice(at, at + size));
      controller.close();
    },
  });
  const found = [];
  for await (const event of events(body)) found.push([event.event, event.data, event.id]);
  return found;
}"""

STREAM = """: a comment

id: 1
data: {"text": "é漢🦊"}

:keepalive

event: unbroken.recovering
data: one
data: two

id: 2
data:no space

data: half an event"""


async def test_events_may_be_cut_anywhere(modules: Page) -> None:
    expected = [
        ["message", '{"text": "é漢🦊"}', "1"],
        ["unbroken.recovering", "one\ntwo", "1"],
        ["message", "no space", "2"],
    ]
    for newline, size in product(("\n", "\r\n", "\r"), (1, 2, 3, 1000)):
        data = list(STREAM.replace("\n", newline).encode())
        assert await modules.evaluate(EVENTS, [data, size]) == expected
