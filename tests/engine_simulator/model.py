"""The pretend model: a pure function from everything before a token to that token.

The conversation up to the assistant's header fixes a 64-bit state; every text spoken after it
changes the state. Both depend on bytes, not on how they are cut into tokens, and a real control
token counts as different from its spelling. Above temperature 0 the seed is part of the state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import chain, islice

from .alphabets import ALPHABETS
from .templates import TEMPLATES, Message, Template
from .vocabulary import (
    TOKENS,
    encode_bytes,
    incomplete_tail,
    marked_bytes,
    text_bytes,
)

_MASK = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15
_SURROGATE_JSON = '"\\ud800"'
_DIRECTIVE = re.compile(rb"\[\[(?:tokens=(\d+)|alphabet=([a-z]+)|surrogate@(\d+))\]\]")


class WrongPrefix(Exception):
    """The prompt continues an answer that this model would not have given."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of an answer and the text that becomes visible with it.

    The text is empty while a character is unfinished, and for the token that ends the answer.
    """

    token_id: int
    data: bytes
    text: str
    json_text: str  # the text as a JSON string, quotes included
    is_held: bool = False  # the token leaves a character unfinished


def make_piece(token_id: int, data: bytes, text: str, *, is_held: bool = False) -> Piece:
    """Build a piece, escaping its text as the engines do."""
    return Piece(token_id, data, text, json.dumps(text, ensure_ascii=False), is_held)


@dataclass(frozen=True, slots=True)
class _Item:
    """One text of an alphabet: its pieces and what speaking it does to the state."""

    pieces: tuple[Piece, ...]
    factor: int
    addend: int


def _pieces_of(data: bytes, token_ids: Sequence[int]) -> tuple[Piece, ...]:
    """Cut the text of some tokens so that each character appears with the token that ends it."""
    pieces = []
    shown = end = 0
    for token_id in token_ids:
        token = TOKENS[token_id]
        end += len(token)
        complete = not incomplete_tail(data[shown:end])
        text = data[shown:end].decode("utf-8", "replace") if complete else ""
        shown = end if complete else shown
        pieces.append(make_piece(token_id, token, text, is_held=not complete))
    return tuple(pieces)


def _item(text: str) -> _Item:
    data = text.encode()
    addend = 0
    for value in data:
        addend = (addend * _BASE + value + 1) & _MASK
    return _Item(_pieces_of(data, encode_bytes(data)), pow(_BASE, len(data), 1 << 64), addend)


@cache
def _items(alphabet: str) -> tuple[tuple[_Item, ...], tuple[_Item, ...]]:
    """Return an alphabet's items, and those of one token, which fill the last place."""
    items = tuple(_item(text) for text in ALPHABETS[alphabet])
    return items, tuple(item for item in items if len(item.pieces) == 1)


def speak(state: int, alphabet: str, length: int) -> Iterator[Piece]:
    """Speak from a state without end; no text straddles the answer's natural length."""
    items, singles = _items(alphabet)
    count = len(items)
    index = 0
    while True:
        draw = ((state ^ (state >> 31)) * 0xBF58476D1CE4E5B9) & _MASK
        draw ^= draw >> 29
        item = items[draw % count]
        end = index + len(item.pieces)
        if index < length < end:
            item = singles[draw % len(singles)]
            end = index + 1
        yield from item.pieces
        index = end
        state = (state * item.factor + item.addend) & _MASK


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt says: the context that fixes the answer, and the answer so far."""

    state: int
    length: int  # tokens of the whole answer, without the one that ends it
    alphabet: str
    surrogate_at: int  # the answer token that carries a lone surrogate, or 0
    answer: bytes  # said so far, as the model sees it


def read_prompt(marked: bytes, template: Template, seed: int | None) -> Conversation:
    """Find the last assistant header of a prompt; a prompt without turns is all context.

    Raises WrongPrefix if the prompt has turns and the last one is not the assistant's: so ends a
    half answer whose text was parsed for control tokens.
    """
    header = template.header_mark("assistant")
    last_turn = marked.rfind(template.turn_mark)
    if last_turn >= 0 and not marked.startswith(header, last_turn):
        raise WrongPrefix("the prompt's last turn is not the assistant's")
    end = last_turn + len(header) if last_turn >= 0 else len(marked)
    context, answer = marked[:end], marked[end:]

    question = context[context.rfind(template.header_mark("user")) :] if last_turn >= 0 else context
    length = alphabet = surrogate_at = None
    for tokens, name, position in _DIRECTIVE.findall(question):
        length = int(tokens) if tokens else length
        alphabet = name.decode() if name.decode() in ALPHABETS else alphabet
        surrogate_at = int(position) if position else surrogate_at

    salt = b"" if seed is None else b"%d" % (seed & _MASK)
    digest = blake2b(context, digest_size=8, key=salt).digest()
    by_itself = 40 + int.from_bytes(blake2b(context, digest_size=4).digest(), "big") % 81
    return Conversation(
        int.from_bytes(digest, "big"),
        by_itself if length is None else length,
        alphabet or "mixed",
        surrogate_at or 0,
        answer,
    )


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where an answer goes on: its coming pieces, their first index, and an open character."""

    pieces: Iterator[Piece]
    index: int
    length: int
    surrogate_at: int
    open_bytes: bytes  # of the character that the prompt leaves unfinished


def continue_prompt(
    prompt_ids: Sequence[int], template: Template, seed: int | None
) -> Continuation:
    """Check the answer so far against the one this model gives, and go on from there.

    `seed` is None for greedy decoding. Raises WrongPrefix.
    """
    marked = marked_bytes(prompt_ids)
    conversation = read_prompt(marked, template, seed)
    answer = conversation.answer
    pieces = speak(conversation.state, conversation.alphabet, conversation.length)
    index = said = 0
    rest = b""
    while said < len(answer):
        piece = next(pieces)
        index += 1
        if answer.startswith(piece.data, said):
            said += len(piece.data)
        elif piece.data.startswith(answer[said:]):
            rest = piece.data[len(answer) - said :]
            said = len(answer)
        else:
            at = f"token {index} of the answer should be {piece.data!r}"
            raise WrongPrefix(f"{at}, the prompt has {answer[said : said + 24]!r}")

    open_bytes = incomplete_tail(answer or marked)
    if rest:  # the text was cut inside a token
        ids = encode_bytes(rest)
        pieces = chain(_pieces_of(rest, ids), pieces)
        index -= len(ids)
    elif open_bytes and not answer:  # a prompt of bare ids that ends inside a character
        rest = _finish_character(open_bytes)
        pieces = chain(_pieces_of(rest, encode_bytes(rest)), pieces)
    return Continuation(pieces, index, conversation.length, conversation.surrogate_at, open_bytes)


def _finish_character(open_bytes: bytes) -> bytes:
    """Return bytes that make a valid character of a begun one."""
    for missing in (1, 2, 3):
        for value in range(0x80, 0xC0):
            rest = bytes([value]) * missing
            try:
                (open_bytes + rest).decode()
            except UnicodeDecodeError:
                continue
            return rest
    raise ValueError(f"not the beginning of a character: {open_bytes!r}")


@dataclass(frozen=True, slots=True)
class Answer:
    """An unbroken answer, as a test expects it.

    `token_ids` holds what the engine reports, the end token included if the answer ended by it.
    """

    token_ids: list[int]
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int

    @property
    def spoken_ids(self) -> list[int]:
        """The ids without the end token."""
        return self.token_ids[:-1] if self.finish_reason == "stop" else self.token_ids


def effective_seed(temperature: float, seed: int | None) -> int | None:
    """Return what the state depends on: nothing for greedy decoding, else the seed."""
    return (seed or 0) if temperature > 0 else None


def expected_answer(
    messages: Sequence[Message],
    *,
    temperature: float = 0.0,
    seed: int | None = None,
    max_tokens: int | None = None,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    dialect: str = "vllm",
    template: str = "chatml",
) -> Answer:
    """Return what the simulator answers when nothing goes wrong, computed without it.

    The dialects differ in one thing: with `max_tokens=0` llama.cpp still gives one token, vLLM
    refuses. A character cut by `max_tokens` is not in the text.
    """
    if max_tokens == 0 and dialect == "vllm":
        raise ValueError("vLLM refuses max_tokens=0")
    if max_tokens is None and ignore_eos:
        raise ValueError("an answer that ignores its end needs max_tokens")
    chosen = TEMPLATES[template]
    prompt_ids = chosen.render_ids(messages)
    start = continue_prompt(prompt_ids, chosen, effective_seed(temperature, seed))
    length = max(start.length, min_tokens)
    limit = length + 1 if max_tokens is None else max(1, max_tokens)
    ends_itself = not ignore_eos and limit > length
    spoken = list(islice(start.pieces, length if ends_itself else limit))
    ids = [piece.token_id for piece in spoken]
    if ends_itself:
        ids.append(chosen.end_id)
    return Answer(
        ids,
        "".join(
            with_surrogate(piece).text if index == start.surrogate_at else piece.text
            for index, piece in enumerate(spoken, 1)
        ),
        "stop" if ends_itself else "length",
        len(prompt_ids),
        len(ids),
    )


def with_surrogate(piece: Piece) -> Piece:
    """Return the piece with a lone surrogate after its text, which no UTF-8 can carry."""
    return Piece(
        piece.token_id,
        piece.data,
        piece.text + "\ud800",
        piece.json_text[:-1] + _SURROGATE_JSON[1:],
    )


def end_piece(template: Template) -> Piece:
    """Return the piece that ends an answer."""
    return make_piece(template.end_id, b"", "")


def visible_text(prompt_ids: Sequence[int]) -> str:
    """Return the text of a prompt without control tokens and without a begun character."""
    data = text_bytes(prompt_ids)
    tail = incomplete_tail(data)
    return data[: len(data) - len(tail)].decode("utf-8", "replace")
