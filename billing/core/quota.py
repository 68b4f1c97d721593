"""What a session may come to, and how much of a limit is used up."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

BYTES_PER_TOKEN = 3
"""Of UTF-8. English has more, Chinese about as many; so the estimate is rather too large. Less of
what tokenizers cut small, such as rare scripts, emoji and numbers."""
TOKENS_PER_MESSAGE = 8
"""What a chat template puts around one."""
TOKENS_PER_PROMPT = 64
"""What it puts around all of them: a system message of its own, and the beginning of the answer."""

THRESHOLDS = (80, 100)
"""Percent of a limit that are told when they are reached."""


def prompt_estimate(contents: Iterable[str]) -> int:
    """About how many tokens messages with these contents are; nobody has counted them yet.

    Rather too many, but no upper bound: only the engine knows its tokenizer and its template.
    """
    return TOKENS_PER_PROMPT + sum(
        -(-len(text.encode(errors="surrogatepass")) // BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE
        for text in contents
    )


def reached(used: Decimal | int, limit: Decimal | int | None) -> list[int]:
    """The thresholds of ``limit`` that ``used`` has reached; none of no limit, or of nothing."""
    if not limit or limit < 0:
        return []
    return [threshold for threshold in THRESHOLDS if used * 100 >= limit * threshold]
