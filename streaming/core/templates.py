"""The chat templates the gateway can render itself, for nodes that are continued from text.

Sources: the ChatML format (Qwen 2.5, SmolLM2) and Meta's Llama 3 prompt format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Message = Mapping[str, str]

# Models have more control tokens than their template uses (<|fim_prefix|>, <|python_tag|>, …), all
# spelt alike.
_CONTROL = re.compile(r"<\|[^\s<|>]+\|>")
_BEGUN_CONTROL = re.compile(r"<\|[^\s<|>]*\|?\Z")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """``render`` gives the prompt text up to and including the assistant's header."""

    name: str
    render: Callable[[Sequence[Message]], str]


def contains_control(text: str) -> bool:
    """Whether ``text`` spells a control token: as text to an engine it would become that token."""
    return _CONTROL.search(text) is not None


def spells_control(text: str) -> bool:
    """The same for a text that goes on: one that ends inside a spelling counts too."""
    return contains_control(text) or _BEGUN_CONTROL.search(text) is not None


def _chatml(messages: Sequence[Message]) -> str:
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return f"{turns}<|im_start|>assistant\n"


def _llama3(messages: Sequence[Message]) -> str:
    turns = "".join(
        f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n{m['content'].strip()}<|eot_id|>"
        for m in messages
    )
    return f"<|begin_of_text|>{turns}<|start_header_id|>assistant<|end_header_id|>\n\n"


TEMPLATES: dict[str, ChatTemplate] = {
    template.name: template
    for template in (ChatTemplate("chatml", _chatml), ChatTemplate("llama3", _llama3))
}
