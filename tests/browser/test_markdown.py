"""Markdown that grows, in a real browser: safe whatever it says, the same however it comes."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page

pytestmark = pytest.mark.browser

MARKDOWN = """# Heading <b>no</b>

A paragraph with **bold `code` text**, *emphasis* and <script>window.hurt = 1</script>,
on two lines & with [a link](javascript:window.hurt=1) <img src=x onerror="window.hurt=1">.

- one
- two **2**
  - inner

3. three
4. four

> quoted *words*
> in two lines

| Plan | Price |
|---|---|
| small | **1** |

---

```html
<script>window.hurt = 1</script>
**not bold**

- no list
```

The end of an `unfinished
"""

LINKS = """[good](https://example.org/a_(b)?c=d) and https://example.org/x, **[bold](http://b.example)**
[mail](mailto:a@b.example) [no](JAVASCRIPT:alert(1)) [no](data:text/html,x) [no](java\tscript:x)
[no](vbscript:x) [no](//evil.example) [no](file:///etc/passwd) <https://angled.example>
![image](https://example.org/i.png) [[nested](https://n.example)](https://m.example)
[a](https://x.example" onclick="window.hurt=1) `https://code.example`
"""

RENDER = """async ([source, step]) => {
  const { MarkdownView } = await import("/markdown.js");
  const root = document.createElement("div");
  document.body.append(root);
  const view = new MarkdownView(root);
  for (let at = 0; at < source.length; at += step) {
    view.append(source.slice(at, at + step));
    view.render();
  }
  return root.innerHTML;
}"""

TARGETS = """async (source) => {
  const { MarkdownView } = await import("/markdown.js");
  const root = document.createElement("div");
  const view = new MarkdownView(root);
  view.append(source);
  view.render();
  const tags = new Set([...root.querySelectorAll("*")].map((one) => one.tagName));
  const links = [...root.querySelectorAll("a")];
  return {
    tags: [...tags].sort(),
    links: links.map((a) => [a.getAttribute("href"), a.rel, a.target, a.textContent]),
    handlers: root.querySelectorAll("[onclick], [onerror], [style], [src]").length,
  };
}"""

GROW = """async ([make, length]) => {
  const { MarkdownView } = await import("/markdown.js");
  const kinds = {
    stars: "**a *b ", ticks: "`` ` ", brackets: "[![](", links: "[a](http://x", quotes: "> > ",
    items: "- x\\n", cells: "|a|b|\\n|-|-|\\n", plain: "word ", cjk: "\\u6f22", fence: "~~~\\ncode\\n",
    urls: "http://a.example/", fences: "```\\nx\\n```\\n", pairs: "\\ud83e\\udd8a", spaces: " ",
  };
  const source = kinds[make].repeat(Math.ceil(length / kinds[make].length)).slice(0, length);
  const root = document.createElement("div");
  const view = new MarkdownView(root);
  let frames = 1;
  view.append(source);
  while (!view.renderSome()) frames += 1;
  const lone = /[\\ud800-\\udbff](?![\\udc00-\\udfff])/.test(source.slice(0, -1));
  const torn = [...root.querySelectorAll("p")].some((p) => /[\\ud800-\\udbff]$/.test(p.textContent));
  const letters = (text) => text.replace(/[^\\p{L}]/gu, "").length;
  return { frames, torn: torn && !lone, kept: letters(root.textContent), all: letters(source) };
}"""

KEEPS = """async () => {
  const { MarkdownView } = await import("/markdown.js");
  const root = document.createElement("div");
  document.body.append(root);
  const view = new MarkdownView(root);
  view.append("Some words that a reader selects and more\\n- and an item");
  view.render();
  const range = document.createRange();
  range.setStart(root.querySelector("p").firstChild, 5);
  range.setEnd(root.querySelector("p").firstChild, 10);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  for (const text of [" of it", " **goes** on", "\\n\\nand ", "on"]) {
    view.append(text);
    view.render();
  }
  return getSelection().toString();
}"""


async def rendered(modules: Page, source: str, step: int = 1_000_000) -> str:
    return await modules.evaluate(RENDER, [source, step])


async def test_markdown_is_text_until_it_is_markdown(modules: Page) -> None:
    html = await rendered(modules, MARKDOWN)
    for part in (
        '<h3 dir="auto">Heading &lt;b&gt;no&lt;/b&gt;</h3>',
        "<strong>bold <code",
        "<em>emphasis</em>",
        '<ul dir="auto"><li>one</li><li>two <strong>2</strong><ul dir="auto"><li>inner</li></ul></li></ul>',
        '<ol dir="auto" start="3"><li>three</li><li>four</li></ol>',
        '<blockquote dir="auto"><p>quoted <em>words</em>\nin two lines</p></blockquote>',
        "<thead><tr><th>Plan</th><th>Price</th></tr></thead>",
        "<tbody><tr><td>small</td><td><strong>1</strong></td></tr></tbody>",
        "<hr>",
        "**not bold**\n\n- no list\n</code></pre>",
        "`unfinished",
    ):
        assert part in html
    for tag in ("<script", "<img", "<a", "<b>"):
        assert tag not in html
    for step in (1, 2, 7):  # and however it comes, it ends the same
        assert await rendered(modules, MARKDOWN, step) == html


async def test_links_go_where_they_may_and_nowhere_else(modules: Page) -> None:
    found: dict[str, Any] = await modules.evaluate(TARGETS, LINKS)
    targets = {href: text for href, _, _, text in found["links"]}
    assert targets == {
        "https://example.org/a_(b)?c=d": "good",
        "https://example.org/x": "https://example.org/x",
        "http://b.example/": "bold",
        "mailto:a@b.example": "mail",
        "https://angled.example/": "https://angled.example",
        "https://example.org/i.png": "image",
        "https://n.example/": "nested",
        # What is no link is text, and an address in text is a link again.
        "https://m.example/": "https://m.example",
        "https://x.example/": "https://x.example",
    }
    assert {(rel, target) for _, rel, target, _ in found["links"]} == {
        ("noopener noreferrer", "_blank")
    }
    assert found["handlers"] == 0
    assert set(found["tags"]) <= {"A", "P", "STRONG", "EM", "CODE"}


async def test_marks_that_turn_text_around_turn_nothing(modules: Page) -> None:
    html = await rendered(
        modules, "a \u202egnihton\n\n```\nif (\u2066user\u2069) {}\n```\n\nمرحبا hello"
    )
    assert '<span class="control" data-code="U+202E">\u202e</span>gnihton' in html
    assert '<span class="control" data-code="U+2066">' in html
    assert '<pre dir="ltr"' in html
    directions = await modules.evaluate(
        "[...document.querySelectorAll('p')].map((p) => getComputedStyle(p).direction)"
    )
    assert directions == ["ltr", "rtl"]
    # What is written in both directions keeps the marks it needs.
    assert "control" not in await rendered(modules, "\u200fعربي\u200f \u2067x\u2069")


KINDS = (
    "stars", "ticks", "brackets", "links", "quotes", "items", "cells", "plain", "cjk", "fence", "urls",
    "fences", "pairs", "spaces",
)  # fmt: skip


async def test_much_of_anything_is_drawn_in_small_pieces(modules: Page) -> None:
    """A frame settles 40,000 characters and draws a tail of 12,000 more; what is O(n²) ends never."""
    for kind in KINDS:
        grown = await modules.evaluate(GROW, [kind, 1_000_000 if kind == "plain" else 300_000])
        assert grown["frames"] >= 5, kind
        assert not grown["torn"], kind
        if kind in ("plain", "cjk", "items", "urls"):
            assert grown["kept"] == grown["all"], kind


async def test_what_is_selected_stays_selected_while_the_text_grows(modules: Page) -> None:
    assert await modules.evaluate(KEEPS) == "words"
