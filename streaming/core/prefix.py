"""Which prompts begin alike: what an engine may still have computed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

LONGEST = 4096
"""Characters that are looked at: some thousand tokens are worth going back to a node for."""


def prefix_key(messages: Sequence[Mapping[str, str]]) -> int:
    """A number that conversations share which begin alike: 64 bits.

    They do if everything up to and including the first message of the user is the same, so it
    stays the same while a conversation grows.
    """
    digest = hashlib.blake2b(digest_size=8)
    left = LONGEST
    for message in messages:
        part = message["content"][:left]
        left -= len(part)
        # Lone surrogates may come in by JSON; here they need only be told apart.
        digest.update(f"{message['role']}\0{part}\0".encode(errors="surrogatepass"))
        if message["role"] == "user" or not left:
            break
    return int.from_bytes(digest.digest(), "big")
