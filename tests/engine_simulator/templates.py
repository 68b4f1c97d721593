"""The two chat templates: how messages become a prompt, and how a prompt is read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .vocabulary import CONTROL_IDS, control_mark, encode, marked_bytes

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Template:
    """One way of writing a conversation with control tokens."""

    name: str
    start: str  # of the whole prompt
    before_role: str
    after_role: str
    end_of_turn: str
    after_turn: str
    trims: bool  # Llama-3's template strips every message

    @property
    def end_id(self) -> int:
        """The token that ends an answer."""
        return CONTROL_IDS[self.end_of_turn]

    @property
    def turn_mark(self) -> bytes:
        """What begins a turn, as the model sees it."""
        return control_mark(self.before_role)

    @property
    def end_mark(self) -> bytes:
        """What ends a turn, as the model sees it."""
        return control_mark(self.end_of_turn)

    def header_mark(self, role: str) -> bytes:
        """Return a turn's header as the model sees it."""
        return marked_bytes(encode(self.header(role), parse_special=True))

    def header(self, role: str) -> str:
        """Return a turn's header as text."""
        return f"{self.before_role}{role}{self.after_role}"

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Write the conversation; the last message stays open with `continue_final_message`."""
        text = self.start
        for number, message in enumerate(messages, 1):
            content = message["content"].strip() if self.trims else message["content"]
            text += self.header(message["role"]) + content
            if not (continue_final_message and number == len(messages)):
                text += self.end_of_turn + self.after_turn
        return text + self.header("assistant") if add_generation_prompt else text

    def render_ids(self, messages: Sequence[Message], **options: bool) -> list[int]:
        """Write the conversation as token ids, control tokens in message text parsed as real."""
        return encode(self.render(messages, **options), parse_special=True)


CHATML = Template("chatml", "", "<|im_start|>", "\n", "<|im_end|>", "\n", trims=False)
LLAMA3 = Template(
    "llama3",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>\n\n",
    "<|eot_id|>",
    "",
    trims=True,
)
TEMPLATES = {template.name: template for template in (CHATML, LLAMA3)}
