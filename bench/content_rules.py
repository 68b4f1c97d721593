"""What content rules cost a token: ``python -m bench.content_rules``.

On this thread, without a gateway: words of an answer, one a token, through the filter.
"""

from __future__ import annotations

import random
import string
import time

from streaming.core.chunks import Token
from streaming.core.content_rules import Action, Rule, RuleSet

TOKENS = 20_000
HOLD = 256
ROUNDS = 3

REGEXES = [
    r"\b\d{3}-\d{2}-\d{4}\b",
    r"(?:\d[ -]?){13,16}",
    r"[\w.+-]+@[\w-]+\.[\w.]+",
    r"sk-[A-Za-z0-9]{20,}",
    *(rf"\bproject-{name}-\d{{2,6}}\b" for name in string.ascii_lowercase[:16]),
]


def rules(words: int = 0, regexes: int = 0) -> list[Rule]:
    chance = random.Random(1)
    made = ["".join(chance.choices(string.ascii_lowercase, k=7)) for _ in range(words)]
    return [
        *(Rule(word, word, Action.MASK) for word in made),
        *(Rule(one, one, Action.MASK, is_regex=True) for one in REGEXES[:regexes]),
    ]


def microseconds_per_token(ready: RuleSet) -> float:
    """CPU time; the best of a few rounds."""
    chance = random.Random(2)
    tokens = [
        Token(number, " " + "".join(chance.choices(string.ascii_lowercase, k=chance.randint(1, 8))))
        for number in range(TOKENS)
    ]
    best = float("inf")
    for _ in range(ROUNDS):
        content_filter = ready.filter()
        began = time.thread_time()
        for token in tokens:
            content_filter.feed([token])
        best = min(best, time.thread_time() - began)
    return best / TOKENS * 1e6


def main() -> None:
    for name, some in (
        ("10 words", rules(10)),
        ("1,000 words", rules(1000)),
        ("1 regex", rules(0, 1)),
        ("20 regexes", rules(0, 20)),
        ("1,000 words and 20 regexes", rules(1000, 20)),
    ):
        began = time.thread_time()
        ready = RuleSet(some, HOLD)
        made = (time.thread_time() - began) * 1000
        print(
            f"{name}: {microseconds_per_token(ready):.1f} µs a token, made ready in {made:.0f} ms"
        )


if __name__ == "__main__":
    main()
