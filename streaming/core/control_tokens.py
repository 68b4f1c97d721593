"""Text of clients that spells a control token of some model.

An engine reads the rendered prompt as one text: a message that spells the end of its turn would end
it, and the rest would speak as whoever it likes, the system included. Such spellings get a space behind
their first character: a reader sees what was meant, and no tokenizer takes it for the token.
"""

from __future__ import annotations

import re

# ChatML, Llama 3, Phi, GLM, Command R (``<|…|>``), DeepSeek (``<｜…｜>``), Llama 2 and Mistral
# (``<s>``, ``[INST]``, ``<<SYS>>``), Gemma (``<start_of_turn>``), Nemotron (``<extra_id_1>``).
_SPELT = re.compile(
    r"""
    <(?= \|[^\s<|>]{1,80}\|> | ｜[^\s<｜>]{1,80}｜>
       | /?s> | (?:bos|eos|pad|unk|mask|sop|eop)> | (?:start|end)_of_turn>
       | (?:extra_id|SPECIAL|unused)_?\d+> | </?SYS>> )
    | \[(?= /?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|gMASK|sMASK)\] )
    """,
    re.VERBOSE,
)


def disarmed(text: str) -> str:
    """``text`` as it may stand in a prompt. Doing it twice changes nothing more."""
    if "<" not in text and "[" not in text:
        return text
    return _SPELT.sub(lambda found: f"{found.group()} ", text)
