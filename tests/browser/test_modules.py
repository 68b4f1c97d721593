"""The page's modules by themselves: Markdown that grows, events that come in pieces."""

from __future__ import annotations

from itertools import product

import pytest

from tests.browser.conftest import Visit

pytestmark = pytest.mark.browser

MARKDOWN = """# Heading <b>no</b>

A paragraph with **bold `code` text**, *emphasis* and <script>window.hurt = 1</script>,
on two lines & with [a link](javascript:window.hurt=1) <img src=x onerror="window.hurt=1">.

- one
- two **2**

3. three
4. four

```html
<script>window.hurt = 1</script>
**not bold**

- no list
```

The end of an `unfinished
"""

RENDER = """async ([source, step]) => {
  const { MarkdownView } = await import("/static/streaming/markdown.js");
  const root = document.createElement("div");
  const view = new MarkdownView(root);
  for (let at = 0; at < source.length; at += step) {
    view.append(source.slice(at, at + step));
    view.render();
  }
  return root.innerHTML;
}"""

EVENTS = """async ([bytes, size]) => {
  const { events } = await import("/static/streaming/sse.js");
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


async def test_markdown_is_text_until_it_is_markdown(visit: Visit) -> None:
    html = await visit.page.evaluate(RENDER, [MARKDOWN, len(MARKDOWN)])
    assert "<h3>Heading &lt;b&gt;no&lt;/b&gt;</h3>" in html
    assert "<strong>bold" in html
    assert "<em>emphasis</em>" in html
    assert "<ul><li>one</li><li>two <strong>2</strong></li></ul>" in html
    assert '<ol start="3"><li>three</li><li>four</li></ol>' in html
    assert "**not bold**\n\n- no list\n</code></pre>" in html
    assert "`unfinished" in html
    for tag in ("<script", "<img", "<a", "<b>"):
        assert tag not in html
    assert await visit.page.evaluate("window.hurt === undefined")

    for step in (1, 2, 7):  # and however it comes, it ends the same
        assert await visit.page.evaluate(RENDER, [MARKDOWN, step]) == html


async def test_events_may_be_cut_anywhere(visit: Visit) -> None:
    expected = [
        ["message", '{"text": "é漢🦊"}', "1"],
        ["unbroken.recovering", "one\ntwo", "1"],
        ["message", "no space", "2"],
    ]
    for newline, size in product(("\n", "\r\n", "\r"), (1, 2, 3, 1000)):
        data = list(STREAM.replace("\n", newline).encode())
        assert await visit.page.evaluate(EVENTS, [data, size]) == expected
