"""The chat templates the gateway can render itself, for nodes that are continued from text.

Sources: the ChatML format (Qwen 2.5, SmolLM2) and Meta's Llama 3 prompt format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """``render`` gives the prompt text up to and including the assistant's header.

    ``controls`` are the spellings of the template's control tokens: text in which one of them
    appears must never be sent as text, since the engine would read it as the control token.
    """

    name: str
    render: Callable[[Sequence[Message]], str]
    controls: tuple[str, ...]

    def spells_control(self, text: str) -> bool:
        """Whether ``text``, sent to an engine as text, would contain a control token.

        A control token's spelling may also be completed by what follows, so a text that ends
        inside one counts too.
        """
        return any(
            control in text or any(text.endswith(control[:n]) for n in range(2, len(control)))
            for control in self.controls
        )


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
    "chatml": ChatTemplate("chatml", _chatml, ("<|im_start|>", "<|im_end|>", "<|endoftext|>")),
    "llama3": ChatTemplate(
        "llama3",
        _llama3,
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|eom_id|>",
            "<|python_tag|>",
        ),
    ),
}
