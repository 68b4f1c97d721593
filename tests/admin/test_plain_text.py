"""What strangers wrote does nothing on a page, and hides nothing on it."""

from __future__ import annotations

import unicodedata
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.admin.plain_text import named, visible

ANY = st.text(st.characters(exclude_categories=()), max_size=80)
BIDI = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x61C]


@pytest.mark.parametrize("code", [*BIDI, 0x1B, 0x00, 0x07, 0x7F, 0x9B, 0x200B, 0xFEFF, 0xE0041])
def test_controls_are_seen_and_gone(code):
    for shown in (named(f"a{chr(code)}b"), visible(f"a{chr(code)}b")):
        assert chr(code) not in shown
    assert 'class="unbroken-control"' in visible(chr(code))


def test_they_are_called_by_their_names():
    assert named("\x1b[31m \u202e \x7f \x00") == "ESC[31m U+202E DEL NUL"


def test_lines_tabs_joiners_and_letters_stay():
    text = "one\r\ntwo\tthree 日本語 \U0001f468\u200d\U0001f469 می\u200cخواهم �"
    assert named(text) == text.replace("\r\n", "\n")


def test_markup_is_text():
    assert visible("<b>&'\"") == "<bdi>&lt;b&gt;&amp;&#x27;&quot;</bdi>"


@given(ANY)
def test_any_text_is_well_formed_and_says_the_same(text):
    """Nothing comes out that XML or a terminal could stumble over, and no letter is lost."""
    element = ElementTree.fromstring(visible(text))
    assert "".join(element.itertext()) == named(text)
    for letter in named(text):
        assert letter in "\n\t" or unicodedata.category(letter) not in ("Cc", "Cs")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)


@given(st.lists(st.sampled_from(["<script>", "</bdi>", "\x02", "\x03", "\u202e", "<!--", "&lt;"])))
def test_no_tag_but_our_own_comes_out(parts):
    tags = Tags()
    tags.feed(visible("".join(parts)))
    assert tags.seen <= {"bdi", "span"}
