"""One request's walk along an answer: limits, stop strings, and the engines' faults at the seam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .model import (
    Piece,
    continue_prompt,
    effective_seed,
    end_piece,
    make_piece,
    with_surrogate,
)
from .templates import Template
from .vocabulary import incomplete_tail, text_bytes


class SeamFlaw(Enum):
    """What an engine prints when its prompt ends inside a character."""

    PROMPT_LEAK = "vLLM: the whole prompt's text, before the finished character"
    REPLACEMENT = "llama.cpp: a replacement character for each byte"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The parameters of a request that shape its answer."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False


class StopStrings:
    """Holds back text that may be part of a stop string.

    vLLM always keeps the length of the longest stop string less one; llama.cpp keeps only what
    a stop string could really begin with.
    """

    def __init__(self, stops: Sequence[str], *, keeps_fixed_length: bool) -> None:
        self._stops = stops
        self._fixed = max(map(len, stops)) - 1 if keeps_fixed_length else None
        self._held = ""

    def pass_on(self, text: str, *, is_last: bool) -> tuple[str, str | None]:
        """Take new text; return what may be shown and the stop string that matched."""
        held = self._held + text
        found = [(held.find(stop), stop) for stop in self._stops if stop in held]
        if found:
            at, stop = min(found)
            return held[:at], stop
        if is_last:
            keep = 0
        elif self._fixed is not None:
            keep = self._fixed
        else:
            keep = max(self._possible_beginning(held, stop) for stop in self._stops)
        shown = max(0, len(held) - keep)
        self._held = held[shown:]
        return held[:shown], None

    @staticmethod
    def _possible_beginning(held: str, stop: str) -> int:
        lengths = range(min(len(held), len(stop) - 1), 0, -1)
        return next((length for length in lengths if held.endswith(stop[:length])), 0)


class Generation:
    """The state of one answer being generated. `advance` makes one token.

    `index` counts tokens of the whole answer, `produced` those of this request.
    """

    def __init__(
        self, prompt_ids: Sequence[int], template: Template, sampling: Sampling, flaw: SeamFlaw
    ) -> None:
        seed = effective_seed(sampling.temperature, sampling.seed)
        start = continue_prompt(prompt_ids, template, seed)
        self.prompt_ids = prompt_ids
        self.sampling = sampling
        self.index = start.index
        self.produced = 0
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._pieces = start.pieces
        self._surrogate_at = start.surrogate_at
        self._end_piece = end_piece(template)
        self._end_at = max(start.length, start.index + sampling.min_tokens)
        self._open_bytes = start.open_bytes
        self._flaw = flaw
        self._stops = (
            StopStrings(sampling.stop, keeps_fixed_length=flaw is SeamFlaw.PROMPT_LEAK)
            if sampling.stop
            else None
        )

    def __repr__(self) -> str:
        return f"<Generation [answer token {self.index}, {self.finish_reason or 'running'}]>"

    def advance(self) -> Piece:
        """Make the next token; afterwards `finish_reason` tells whether it was the last."""
        self.produced += 1
        if self.index >= self._end_at and not self.sampling.ignore_eos:
            piece = self._end_piece
            self.finish_reason = "stop"
        else:
            piece = next(self._pieces)
            self.index += 1
            if self._open_bytes:
                piece = self._across_the_seam(piece)
            if self.index == self._surrogate_at:
                piece = with_surrogate(piece)
            if piece.token_id in self.sampling.stop_token_ids:
                piece = make_piece(piece.token_id, b"", "")
                self.finish_reason, self.stop_reason = "stop", piece.token_id
            elif self.produced >= self.sampling.max_tokens:
                self.finish_reason = "length"
        return self._without_stop(piece) if self._stops else piece

    def _across_the_seam(self, piece: Piece) -> Piece:
        """Finish the character that the prompt left open, as wrongly as the engine does."""
        so_far = self._open_bytes + piece.data
        self._open_bytes = incomplete_tail(so_far)
        if self._flaw is SeamFlaw.REPLACEMENT:
            text = piece.data.decode("utf-8", "replace")
        elif self._open_bytes:
            text = ""
        else:
            known = text_bytes(self.prompt_ids)
            seam = len(known) - len(incomplete_tail(known))
            text = (known[:seam] + so_far).decode("utf-8", "replace")
        return make_piece(piece.token_id, piece.data, text)

    def _without_stop(self, piece: Piece) -> Piece:
        assert self._stops is not None
        is_last = self.finish_reason is not None
        shown, stop = self._stops.pass_on(piece.text, is_last=is_last)
        if stop is not None:
            self.finish_reason, self.stop_reason = "stop", stop
        return make_piece(piece.token_id, piece.data, shown, is_held=piece.is_held)
