"""The filter's promise: what comes out depends on the text alone, and no more is held than must be."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streaming.core.chunks import Token
from streaming.core.content_rules import Action, ContentFilter, Hit, Rule, RuleRefused, RuleSet
from tests.content import model

LONGEST = 12
ALPHABET = "ab1 .B_"
WIDER = ALPHABET + "*\u200b\u2060\u00a0\n\uff41"
"""With what readers do not see, and other forms of what they do."""

ATOMS = st.sampled_from(
    ["a", "b", "1", " ", r"\.", ".", "[ab]", "[^a]", r"\w", r"\d", r"\s", r"\W"]
)


def _repeated(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "{0,2}"])
    return st.builds(lambda one, count: f"(?:{one}){count}", inner, counts)


BODIES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda all_: f"(?:{'|'.join(all_)})"),
        _repeated(inner),
    ),
    max_leaves=6,
)
REGEXES = st.builds(
    "{}{}{}".format, st.sampled_from(["", "", "", r"\b", "^"]), BODIES,
    st.sampled_from(["", "", "", r"\b", "$"]),
)  # fmt: skip
WORDS = st.text(WIDER, min_size=1, max_size=4)
NARROW_WORDS = st.text(ALPHABET, min_size=1, max_size=4).filter(lambda word: word.strip() != "")


@st.composite
def rules(draw: st.DrawFn, words: st.SearchStrategy[str] = WORDS) -> list[Rule]:
    found = []
    for number in range(draw(st.integers(1, 3))):
        is_regex = draw(st.booleans())
        rule = Rule(
            name=f"rule {number}",
            pattern=draw(REGEXES if is_regex else words),
            action=draw(st.sampled_from(Action)),
            is_regex=is_regex,
            case_sensitive=draw(st.booleans()),
            replacement=draw(st.sampled_from(["*", "", "a", "#1"])),
        )
        try:
            RuleSet([rule], LONGEST)
        except RuleRefused:
            continue
        found.append(rule)
    return found


TEXTS = st.one_of(st.text(ALPHABET, max_size=30), st.text(WIDER, max_size=30))


def run(content_filter: ContentFilter, tokens: list[Token]) -> tuple[list[Token], list[Hit]]:
    shown: list[Token] = []
    hits: list[Hit] = []
    for token in tokens:
        more, found = content_filter.feed([token])
        shown, hits = shown + more, hits + found
        if content_filter.stopped_by is not None:
            return shown, hits
    more, found = content_filter.flush()
    return shown + more, hits + found


def cut(text: str, places: list[int]) -> list[Token]:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [
        Token(number, text[start:end])
        for number, (start, end) in enumerate(itertools.pairwise(edges))
    ]


@settings(max_examples=400, deadline=None)
@given(rules(), TEXTS, st.lists(st.integers(0, 30), max_size=12))
@example([Rule("", "ab", Action.MASK)], "_a\u200b*b_ ab\u200bb", [2, 3])
@example([Rule("", "a b", Action.MASK)], "**\uff41** \n\u00a0*b, ab", [2, 6])
@example([Rule("", "a**b", Action.MASK)], "a***b a*b a****\u200b****b a*********b", [2, 6])
@example([Rule("", r"a\b|ab1", Action.MASK, is_regex=True)], "ab1 a", [1, 2])
@example([Rule("", r"a[^a]*b", Action.MASK, is_regex=True)], "a1111111111111b1b", [3])
def test_the_same_comes_out_however_the_text_is_cut(
    given_rules: list[Rule], text: str, places: list[int]
) -> None:
    content_filter = RuleSet(given_rules, LONGEST).filter()
    tokens, hits = run(content_filter, cut(text, places))
    shown, names = model.whole(given_rules, text, LONGEST)
    assert "".join(token.text for token in tokens) == shown
    assert sorted(hit.rule.name for hit in hits) == names
    assert content_filter.held_tokens == 0


@settings(max_examples=300, deadline=None)
@given(rules(), TEXTS, st.lists(st.integers(0, 30), max_size=12), st.integers(0, 12))
def test_a_new_filter_goes_on_where_an_old_one_was_lost(
    given_rules: list[Rule], text: str, places: list[int], lost_after: int
) -> None:
    """What the old one held is produced again, for another: nothing is different for the reader."""
    ready = RuleSet(given_rules, LONGEST)
    tokens = cut(text, places)
    old = ready.filter()
    shown: list[Token] = []
    names: list[str] = []
    for token in tokens[:lost_after]:
        more, hits = old.feed([token])
        shown += more
        names += [hit.rule.name for hit in hits]
        if old.stopped_by is not None:
            return
    text_so_far = "".join(token.text for token in shown)
    more, hits = run(ready.filter(text_so_far[-1:]), tokens[len(shown) :])
    text_so_far += "".join(token.text for token in more)
    assert (text_so_far, sorted(names + [hit.rule.name for hit in hits])) == model.whole(
        given_rules, text, LONGEST
    )


def shortest(pattern: str) -> int:
    """The characters of its shortest match."""
    least, _ = re._parser.parse(pattern).getwidth()  # type: ignore[attr-defined]
    return least


@settings(max_examples=150, deadline=None)
@given(rules(NARROW_WORDS), st.text(WIDER, min_size=1, max_size=8))
def test_nothing_is_held_that_could_not_be_part_of_a_match(
    given_rules: list[Rule], text: str
) -> None:
    """What is held is the beginning of a match in some continuation, or all of one."""
    for actions in ({Action.STOP, Action.MASK}, {Action.FLAG}):
        some = [rule for rule in given_rules if rule.action in actions]
        ready = RuleSet(some, LONGEST).filter()
        shown, hits = [], []
        for character in text:
            more, found = ready.feed([Token(0, character)])
            shown, hits = shown + more, hits + found
            if ready.stopped_by is not None:
                break
        held = ready.held_tokens
        if held == 0 or any(rule.is_regex and shortest(rule.pattern) > held + 4 for rule in some):
            continue  # what would have to follow is too much to be tried
        before = "".join(token.text for token in shown)
        tail = text[len(text) - held :]
        continuations = [
            tail + "".join(more)
            for size in range(5)
            for more in itertools.product(ALPHABET, repeat=size)
        ]
        assert any(
            model.matches(rule, before, continued, 0, end)
            for continued in continuations
            for end in range(held, min(len(continued), LONGEST) + 1)
            for rule in some
        ), (some, text)


@pytest.mark.parametrize(
    ("pattern", "text", "shown"),
    [
        ("damn", "Damn! goddamn damned DAMN", "***! goddamn damned ***"),
        ("straße", "Die STRASSE, die Straße", "Die ***, die ***"),
        ("naïve", "a nai\u0308ve and a naïve one", "a *** and a *** one"),
        ("敏感", "这是敏感词", "这是***词"),
        ("damn", "damnという", "***という"),
        ("c++", "c++ and c++11, cc++", "*** and ***11, cc++"),
        ("cafe", "cafe\u0301 cafe", "cafe\u0301 ***"),
        ("क", "कि क", "कि ***"),
        ("two words", "Two words, two  words, twowords", "***, ***, twowords"),
        ("two  words", "**Two**\u00a0words two\n   *words*", "***** ****"),
        (
            "secret",
            "se\u200bcret s\u00ade\u034fc\u2060r\ufeffe\ufe0ft sec\u200d\u200cret",
            "*** *** ***",
        ),
        ("secret", "my _secret_, my_secret_key, __secret__!", "my _***_, my_***_key, __***__!"),
        ("secret", "**secret** se**cr**et `sec`ret s~~ecret~~", "******* *** `*** ***~~"),
        (
            "secret",
            "\uff53\uff45\uff43\uff52\uff45\uff54 \U0001d42c\U0001d41e\U0001d41c\U0001d42b\U0001d41e\U0001d42d",
            "*** ***",
        ),
        ("s\u00adecret", "secret", "***"),
        ("file", "\ufb01le profile", "*** profile"),
        ("snake_case", "snake_case snakecase", "*** snakecase"),
        ("damn", "damn\u200bed \u200bdamn\u200b", "***\u200bed \u200b***\u200b"),
        ("ab", "a" + "\u200b" * 254 + "b a" + "\u200b" * 255 + "b", "*** a" + "\u200b" * 255 + "b"),
    ],
)
def test_words_in_any_script(pattern: str, text: str, shown: str) -> None:
    ready = RuleSet([Rule("it", pattern, Action.MASK)], 256)
    tokens, _ = run(ready.filter(), [Token(0, character) for character in text])
    assert "".join(token.text for token in tokens) == shown


@pytest.mark.parametrize(
    ("pattern", "text", "shown"),
    [
        (r"\bkey-\w+\b", "Ein Schlüssel: key-äöü9 und mykey-1", "Ein Schlüssel: *** und mykey-1"),
        (r"\d{3,6}", "12 123 1234567 ١٢٣", "12 *** ***7 ***"),
        (r"[\w.]+@[\w.]+", "write to Jo.Doe@example.org.", "write to ***"),
        (r"(?:\d[ -]?){13,16}", "card 4111 1111-1111 1111!", "card ***!"),
        (r"[\s\S]x", "\nx", "***"),
        (r"(?i)ÄRGER|^so", "So ein ärger so", "*** ein *** so"),
        (r"a.{3}z", "a🎉🎉\ufdd0z a12\nz", "*** a12\nz"),
    ],
)
def test_regexes_on_text_of_many_bytes(pattern: str, text: str, shown: str) -> None:
    ready = RuleSet([Rule("it", pattern, Action.MASK, is_regex=True)], 256)
    for size in (1, 2, 5, 100):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        tokens, _ = run(ready.filter(), [Token(0, piece) for piece in pieces])
        assert "".join(token.text for token in tokens) == shown


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?=a)b", r"(?<!a)b", r"(a)\1", r"a*+b", r"(?>a)b", "a*", "", "(", r"a\bb", r"\b.x", r"\Bx",
        "(?m)^a", "a{257}", "(?:a{300}|b{300})", r"(?a)\w", "a{99999999999}", "[[a]", "(" * 900 + "a" + ")" * 900,
        "(?:a{1,200}){1,200}", r"\w{1,250}", "(?:(?:a{10}){10}){10}b",
    ],
)  # fmt: skip
def test_what_a_stream_cannot_be_searched_for_is_refused(pattern: str) -> None:
    with pytest.raises(RuleRefused):
        RuleSet([Rule("it", pattern, Action.MASK, is_regex=True)], 256)


def test_a_token_keeps_its_id_and_what_is_masked_goes_with_the_last_of_its_tokens() -> None:
    ready = RuleSet([Rule("it", "secret", Action.MASK)], 256).filter()
    first, _ = ready.feed(
        [Token(1, "a "), Token(2, "se"), Token(3, ""), Token(4, "cr"), Token(5, "et")]
    )
    assert first == [Token(1, "a ")]
    assert ready.held_tokens == 4
    rest, hits = ready.feed([Token(6, "!")])
    assert rest == [Token(2, ""), Token(3, ""), Token(4, ""), Token(5, "***"), Token(6, "!")]
    assert [(hit.rule.name, hit.token) for hit in hits] == [("it", 5)]


def test_a_stop_ends_the_answer_before_the_match() -> None:
    rules_ = [Rule("bad", "bad", Action.STOP), Rule("meh", "meh", Action.MASK)]
    content_filter = RuleSet(rules_, 256).filter()
    shown, hits = run(
        content_filter, [Token(1, "meh "), Token(2, "so ba"), Token(3, "d "), Token(4, "x")]
    )
    assert shown == [Token(1, "*** "), Token(2, "so ")]
    assert [(hit.rule.name, hit.token) for hit in hits] == [("meh", 1), ("bad", 2)]
    assert content_filter.stopped_by is rules_[0]
