"""The dialects by name."""

from __future__ import annotations

from streaming.core.nodes import NodeOptions
from streaming.engines.base import Dialect
from streaming.engines.http import EngineClient
from streaming.engines.llamacpp import LlamaCpp
from streaming.engines.vllm import VLLM

DIALECTS: dict[str, type[Dialect]] = {dialect.name: dialect for dialect in (VLLM, LlamaCpp)}


def dialect_for(name: str, client: EngineClient, base_url: str, options: NodeOptions) -> Dialect:
    """Raises ``KeyError`` for a dialect that does not exist."""
    return DIALECTS[name](client, base_url, options)
