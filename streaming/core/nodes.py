"""What can be configured about an engine node, and how a node is written in the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from streaming.core.templates import TEMPLATES

DIALECTS = ("vllm", "llamacpp")
CONTINUATIONS = ("ids", "text", "regenerate")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """``continuation``: ids (default), text or regenerate. ``template``: chatml or llama3.
    ``prompt_cache``: on (default) or off.

    A node whose engine can neither take nor give token ids is continued from text, rendered with
    the named template; ``regenerate`` asks again from the start and suppresses what was delivered.
    Without its prompt cache llama.cpp computes every continuation the same way, which makes greedy
    answers repeatable across a seam; it costs the time of a whole prefill.
    """

    continuation: str = "ids"
    template: str = ""
    prompt_cache: str = "on"

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> NodeOptions:
        """Raise ``ValueError`` naming the option that is unknown or has an unknown value."""
        allowed = {
            "continuation": CONTINUATIONS,
            "template": ("", *TEMPLATES),
            "prompt_cache": ("on", "off"),
        }
        for name, value in options.items():
            if name not in allowed:
                raise ValueError(f"unknown node option {name!r}; known: {', '.join(allowed)}")
            if value not in allowed[name]:
                choices = ", ".join(choice for choice in allowed[name] if choice)
                raise ValueError(f"{name} must be one of {choices}")
        parsed = cls(**options)
        if parsed.continuation != "ids" and not parsed.template:
            raise ValueError(f"continuation={parsed.continuation} needs a template")
        return parsed


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A configured node: ``[name=]dialect+http://host:port[?option=value&…]``."""

    name: str
    dialect: str
    base_url: str
    options: NodeOptions = NodeOptions()
    weight: float = 1.0

    @classmethod
    def parse(cls, text: str) -> NodeSpec:
        """Read one entry of ENGINE_NODES. Raises ``ValueError`` saying what is wrong with it.

        For example ``gpu-a=vllm+http://10.0.0.7:8000?continuation=text``.
        """
        match = re.fullmatch(r"(?:([A-Za-z0-9][\w.-]*)=)?(\w+)\+(https?://\S+)", text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not of the form [name=]dialect+http://host:port")
        name, dialect, url = match.groups()
        if dialect not in DIALECTS:
            raise ValueError(f"unknown dialect {dialect!r}; known: {', '.join(DIALECTS)}")
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError(f"{text!r} names no host")
        options = dict(pair.split("=", 1) for pair in parts.query.split("&") if "=" in pair)
        base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        return cls(name or parts.netloc, dialect, base, NodeOptions.parse(options))


def parse_engine_nodes(text: str) -> list[NodeSpec]:
    """Read ENGINE_NODES (comma-separated). Raises ``ValueError`` for a bad or doubled entry."""
    specs = [NodeSpec.parse(part) for part in text.split(",") if part.strip()]
    for attribute in ("name", "base_url"):
        values = [getattr(spec, attribute) for spec in specs]
        doubled = {value for value in values if values.count(value) > 1}
        if doubled:
            raise ValueError(f"{attribute} given twice in ENGINE_NODES: {', '.join(doubled)}")
    return specs
