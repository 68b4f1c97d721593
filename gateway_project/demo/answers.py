"""Answers as engines give them: tokens with ids, cut into the flushes that made them durable."""

from __future__ import annotations

import json
import random
import re
import zlib
from array import array
from dataclasses import dataclass

from gateway_project.demo.copying import Copied, copied
from gateway_project.demo.topics import SYSTEM_PROMPTS, TOPICS, WORDS, Topic
from streaming.core.digest import RunningDigest

VOCABULARY = 32_000
FLUSH_TOKENS = (6, 18)
"""How many tokens a flush has, at least and at most; only the first one has a single token."""

# Words with the space before them, in pieces of six letters; every sign, and every letter of
# scripts without spaces, by itself. So tokenizers cut, more or less.
_TOKEN = re.compile(r" ?[^\W\d_\u3000-\u9fff]{1,6}|\d{1,3}|\s+|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked and answered. A cut is a flush: ``cuts[i]`` is the last token of the ``i``-th,
    ``digests[i]`` is over all tokens up to it, and ``rows[i]`` its part of a row of the token log:
    first_seq, last_seq, token_ids, text, text_ends, digest. What is large is kept as COPY takes it."""

    request: Copied
    prompt_ids: Copied
    prompt_tokens: int
    cached_tokens: int | None
    cuts: tuple[int, ...]
    digests: tuple[bytes, ...]
    rows: tuple[bytes, ...]

    @property
    def tokens(self) -> int:
        return self.cuts[-1]

    def until(self, flushes: int) -> int:
        """The last token of the first so many flushes."""
        return self.cuts[flushes - 1] if flushes else 0


def question(chance: random.Random) -> str:
    """Something that somebody might ask."""
    topic = chance.choice(TOPICS)
    return _filled(chance, chance.choice(topic.questions), chance.choice(WORDS["product"]))


def answer(chance: random.Random, model: str) -> Answer:
    """A new question to ``model`` and its answer, of some ten to two thousand tokens."""
    topic = chance.choice(TOPICS)
    product = chance.choice(WORDS["product"])
    tokens = round(min(max(chance.lognormvariate(5.2, 0.75), 12), 2000))
    asked = [{"role": "user", "content": _filled(chance, chance.choice(topic.questions), product)}]
    if chance.random() < 0.5:
        asked.insert(0, {"role": "system", "content": chance.choice(SYSTEM_PROMPTS)})
    while chance.random() < 0.3:  # they have talked before
        said = _text(chance, topic, product, 60)
        asked[-1:-1] = [
            {"role": "user", "content": _filled(chance, chance.choice(topic.questions), product)},
            {"role": "assistant", "content": said},
        ]
    body = {"model": model, "stream": True, "messages": asked, "temperature": 0.7}
    prompt = _tokens("".join(f"{one['role']}\n{one['content']}\n" for one in asked))
    cached = None if len(asked) == 1 else chance.randrange(0, len(prompt) // 16 + 1) * 16
    pieces = _tokens(_text(chance, topic, product, tokens))[:tokens]
    return _cut(
        chance,
        pieces,
        request=json.dumps(body, ensure_ascii=False).encode(),
        prompt=_ids(prompt),
        cached=cached,
    )


def _cut(
    chance: random.Random, pieces: list[str], *, request: bytes, prompt: bytes, cached: int | None
) -> Answer:
    digest = RunningDigest()
    cuts, digests, rows = [], [], []
    first = 0
    while first < len(pieces):
        last = min(len(pieces), first + (chance.randint(*FLUSH_TOKENS) if first else 1))
        part = pieces[first:last]
        ids, text = _ids(part), "".join(part).encode()
        ends, position = array("i"), 0
        for piece in part:
            position += len(piece)
            ends.append(position)
        digest.update(ids, text)
        cuts.append(last)
        digests.append(digest.digest())
        columns = map(copied, (ids, text, ends.tobytes(), digests[-1]))
        rows.append("\t".join([str(first + 1), str(last), *columns]).encode())
        first = last
    return Answer(
        copied(request),
        copied(prompt),
        len(prompt) // 4,
        cached,
        tuple(cuts),
        tuple(digests),
        tuple(rows),
    )


def _text(chance: random.Random, topic: Topic, product: str, tokens: int) -> str:
    """Sentences of the topic, for at least so many tokens."""
    told: list[str] = []
    left = tokens
    while left > 0:
        for sentence in topic.sentences:
            if left <= 0:
                break
            if chance.random() < 0.15:
                continue
            told.append(_filled(chance, sentence, product))
            left -= len(_tokens(told[-1]))
        told.append("\n\n")
    return "".join(one if one.endswith("\n") else f"{one} " for one in told).rstrip(" ")


def _filled(chance: random.Random, sentence: str, product: str) -> str:
    """One answer is about one product; of everything else a story may have many."""
    return re.sub(
        r"\{(\w+)\}",
        lambda found: product if found[1] == "product" else chance.choice(WORDS[found[1]]),
        sentence,
    )


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _ids(pieces: list[str]) -> bytes:
    """The same piece has the same id, in every process."""
    return array("i", [3 + zlib.crc32(piece.encode()) % VOCABULARY for piece in pieces]).tobytes()
