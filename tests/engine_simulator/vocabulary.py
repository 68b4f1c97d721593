"""Token ids and bytes of the pretend model, and its tokenizer (greedy, longest match).

Ids: control tokens first, then the 256 single bytes, then longer pieces. Joining the bytes of
`encode(text)` always gives the text back, and a control token is never made from pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .alphabets import ALPHABETS, NEVER_ONE_TOKEN, PIECES

CONTROL_NAMES = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
CONTROL_IDS = {name: token for token, name in enumerate(CONTROL_NAMES)}
FIRST_BYTE = len(CONTROL_NAMES)
END_IDS = frozenset(CONTROL_IDS[name] for name in ("<|endoftext|>", "<|im_end|>", "<|eot_id|>"))

_CONTROL_PATTERN = re.compile("|".join(map(re.escape, CONTROL_NAMES)))


def _collect_tokens() -> list[bytes]:
    """Return the bytes of every token in id order; control tokens have the bytes of their name."""
    tokens = [name.encode() for name in CONTROL_NAMES] + [bytes([value]) for value in range(256)]
    wanted = (
        text.encode()
        for texts in ALPHABETS.values()
        for text in texts
        if text not in NEVER_ONE_TOKEN
    )
    seen = set(tokens)
    for piece in (*wanted, *PIECES):
        if piece not in seen:
            seen.add(piece)
            tokens.append(piece)
    return tokens


TOKENS = _collect_tokens()
_IDS = {data: token for token, data in enumerate(TOKENS) if token >= FIRST_BYTE}
# What a token adds to the text, and what it adds to the model's view of its context: a control
# token adds nothing to the one and a mark no text can spell (0xFF is never in UTF-8) to the other.
_TEXT = [b""] * FIRST_BYTE + TOKENS[FIRST_BYTE:]
_MARKED = [b"\xff%d\xff" % token for token in range(FIRST_BYTE)] + TOKENS[FIRST_BYTE:]


def _lengths_by_first_byte() -> list[tuple[int, ...]]:
    lengths: list[set[int]] = [set() for _ in range(256)]
    for data in _IDS:
        lengths[data[0]].add(len(data))
    return [tuple(sorted(found, reverse=True)) for found in lengths]


_LENGTHS = _lengths_by_first_byte()


def encode_bytes(data: bytes) -> list[int]:
    """Tokenise bytes as ordinary text."""
    ids: list[int] = []
    at = 0
    while at < len(data):
        for length in _LENGTHS[data[at]]:
            token = _IDS.get(data[at : at + length])
            if token is not None:
                ids.append(token)
                at += length
                break
    return ids


def encode(text: str, *, parse_special: bool) -> list[int]:
    """Tokenise text; with `parse_special` a spelt control token becomes the real one."""
    if not parse_special:
        return encode_bytes(_to_bytes(text))
    ids: list[int] = []
    at = 0
    for match in _CONTROL_PATTERN.finditer(text):
        ids += encode_bytes(_to_bytes(text[at : match.start()]))
        ids.append(CONTROL_IDS[match.group()])
        at = match.end()
    return ids + encode_bytes(_to_bytes(text[at:]))


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def text_bytes(ids: Iterable[int]) -> bytes:
    """Return the bytes these tokens add to the text: none for control tokens."""
    return b"".join([_TEXT[token] for token in ids])


def spelt_bytes(ids: Iterable[int]) -> bytes:
    """Return the bytes of the tokens with control tokens spelt out, as `/detokenize` does."""
    return b"".join([TOKENS[token] for token in ids])


def marked_bytes(ids: Iterable[int]) -> bytes:
    """Return what the model sees: control tokens as marks that differ from their spelling."""
    return b"".join([_MARKED[token] for token in ids])


def control_mark(name: str) -> bytes:
    """Return the mark of a control token in `marked_bytes`."""
    return _MARKED[CONTROL_IDS[name]]


def are_known(ids: Sequence[object]) -> bool:
    """Say whether all of these are ids of the vocabulary."""
    size = len(TOKENS)
    return all(type(token) is int and 0 <= token < size for token in ids)


def incomplete_tail(data: bytes) -> bytes:
    """Return the bytes at the end that begin a UTF-8 character without finishing it."""
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 == 0x80:
            continue
        need = 2 if lead >> 5 == 6 else 3 if lead >> 4 == 14 else 4 if lead >> 3 == 30 else 1
        return data[-back:] if need > back else b""
    return b""
