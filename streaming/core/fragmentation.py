"""How much of a node's KV-cache is occupied by nothing that we know of."""

from __future__ import annotations

from collections.abc import Iterable


def fragmentation_index(
    kv_usage: float | None,
    kv_tokens: int | None,
    block_tokens: int | None,
    live_tokens: Iterable[int],
) -> float | None:
    """The share of the cache, 0 to 1, that is occupied beyond what live sessions need.

    ``kv_usage``: the occupied share of the cache, which holds ``kv_tokens`` in blocks of
    ``block_tokens``; ``live_tokens``: of each live session, its prompt and answer in tokens, rounded
    up to whole blocks here. None: the engine does not tell enough. Sessions that share blocks may
    need more than is occupied; that counts as 0.

    For example:

        >>> fragmentation_index(0.5, 1600, 16, [100, 300])
        0.24
    """
    if kv_usage is None or not kv_tokens:
        return None
    block = block_tokens or 1
    needed = sum(-(-tokens // block) * block for tokens in live_tokens)
    return min(1.0, max(0.0, round(kv_usage - needed / kv_tokens, 6)))
