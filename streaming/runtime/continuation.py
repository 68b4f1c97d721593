"""What to ask a node for, so that it goes on from exactly what the reader has."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from psycopg_pool import AsyncConnectionPool

from streaming.core.failures import AttemptFailed, Cause
from streaming.core.seams import SeamGrade, seam_grade
from streaming.core.templates import TEMPLATES, contains_control
from streaming.errors import InvalidRequest
from streaming.fleet.nodes import Node
from streaming.runtime.live import LiveSession
from streaming.runtime.log_reader import full_text
from streaming.runtime.records import packed, session_changed

# Arrays: a prompt may have a hundred thousand ids, and is kept for as long as its session lives.
NO_IDS: array[int] = array("i")


class Plan(NamedTuple):
    """``known``: the text that a regeneration has to repeat before anything is new."""

    grade: SeamGrade
    prompt: array[int] | str
    known: str = ""


class Continuation:
    """The prompt of one session, and how its answer so far is put behind it."""

    def __init__(
        self, session: LiveSession, pool: AsyncConnectionPool, prompt: array[int] | None
    ) -> None:
        self._session = session
        self._pool = pool
        self._prompt = prompt

    async def plan(self, node: Node) -> Plan:
        """The best that ``node`` allows. Raises ``AttemptFailed`` or ``InvalidRequest``."""
        log, dialect = self._session.log, node.dialect
        by_ids = node.options.continuation == "ids"
        prompt = await self._prompt_ids(node) if by_ids else NO_IDS
        answer_by_ids = (
            by_ids
            and log.ids_known
            and (log.ends_surely or await dialect.ends_whole(log.token_ids))
        )
        if answer_by_ids:
            return Plan(SeamGrade.EXACT, prompt + log.token_ids)
        answer = await full_text(self._pool, log) if log.last_seq else ""
        plain = await dialect.tokenize_plain(answer) if by_ids else None
        grade = seam_grade(
            node.options,
            prompt_by_ids=by_ids,
            ids_known=answer_by_ids,
            plain_tokens=plain is not None,
            answer=answer,
        )
        if grade is SeamGrade.TEXT and plain is not None:
            return Plan(grade, prompt + array("i", plain))
        if grade is SeamGrade.TEXT:
            return Plan(grade, self._prompt_text(node) + answer)
        return Plan(grade, prompt if by_ids else self._prompt_text(node), answer)

    async def size(self, node: Node, prompt: array[int] | str, context: int | None) -> int:
        """The tokens of a prompt, answer so far included; too many rather than too few."""
        if not isinstance(prompt, str):
            return len(prompt)
        try:
            return await node.dialect.count_tokens(self._session.model, prompt)
        except AttemptFailed as failure:
            if failure.cause is not Cause.BAD_STATUS:
                raise
        # The node cannot count. No token is shorter than a byte; what does not fit it will refuse.
        most = len(prompt.encode())
        return most if context is None else min(most, context // 2)

    async def _prompt_ids(self, node: Node) -> array[int]:
        """The ids of the prompt: rendered once, by the first node that is asked by ids."""
        session = self._session
        if self._prompt is None:
            ids = await node.dialect.render(session.model, session.request.messages)
            self._prompt = array("i", ids)
            if session.prompt_tokens is None:
                session.prompt_tokens = len(self._prompt)
            session.log.record(
                session_changed(
                    session.id,
                    prompt_token_ids=packed(self._prompt.tobytes()),
                    prompt_tokens=session.prompt_tokens,
                )
            )
        return self._prompt

    def _prompt_text(self, node: Node) -> str:
        """The prompt without any answer, rendered here, for a node that takes text."""
        template = TEMPLATES[node.options.template]
        messages = self._session.request.messages
        for index, message in enumerate(messages):
            if contains_control(message["content"]):
                raise InvalidRequest(
                    "The text spells a control token of the model, and its node takes text only.",
                    param=f"messages[{index}].content",
                )
        return template.render(messages)
