"""What content rules and moderators do to one attempt, and what is written down of it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from psycopg_pool import AsyncConnectionPool

from streaming import metrics
from streaming.conf import conf
from streaming.core.chunks import Token
from streaming.core.content_rules import Action, ContentFilter, Hit
from streaming.core.moderation import Moderated, Moderator, Verdict
from streaming.core.outcome import Review
from streaming.core.seams import SeamGrade, Suppressor
from streaming.ports import ports
from streaming.runtime.journal import record_event
from streaming.runtime.live import LiveSession
from streaming.runtime.log_reader import last_character
from streaming.runtime.records import Record, audit_record, now, session_changed
from streaming.runtime.rule_book import RuleBook

logger = logging.getLogger(__name__)

MOST_EVENTS = 20
"""Of one session; what is found beyond them is counted, and told at the end of the attempt."""


@dataclass(slots=True)
class Portion:
    """Tokens on their way to the log. ``hits``: what was found in them, and in which: 1 is the first;
    of a stop, the last before it. ``finish``: the answer ends with them, for this reason."""

    tokens: list[Token]
    finish: str | None
    ends_surely: bool
    hits: list[Hit] = field(default_factory=list)


class Screening:
    """The filter of one attempt, and its moderator.

    A continuation is filtered from where the reader is, with the last character that was shown. An
    answer that is asked again from the start is filtered from its start, and only then compared with
    what the reader has: that was filtered, too.
    """

    def __init__(
        self, session: LiveSession, content_filter: ContentFilter, moderator: Moderator | None
    ) -> None:
        self._session = session
        self._filter = content_filter
        self._passed = 0
        self._moderator = moderator
        self._window: Portion | None = None

    @property
    def held_tokens(self) -> int:
        """Tokens that wait for what follows, or for a verdict."""
        waiting = len(self._window.tokens) if self._window is not None else 0
        return self._filter.held_tokens + waiting

    @property
    def is_moderated(self) -> bool:
        return self._moderator is not None

    def screen(self, portion: Portion, suppressor: Suppressor | None) -> Portion:
        """What of it may be shown now, and whether the answer ends with it."""
        tokens, hits = self._filter.feed(portion.tokens)
        finish = portion.finish
        if self._filter.stopped_by is not None:
            finish = "content_filter"
        elif finish is not None:
            rest, more = self._filter.flush()
            tokens, hits = tokens + rest, hits + more
            if self._filter.stopped_by is not None:
                finish = "content_filter"
        before, self._passed = self._passed, self._passed + len(tokens)
        hits = [hit._replace(token=hit.token - before) for hit in hits]
        ends_surely = portion.ends_surely and not self._filter.held_tokens
        if suppressor is None:
            return Portion(tokens, finish, ends_surely, hits)
        fresh: list[Token] = []
        new: list[Hit] = []
        at = 0
        for hit in hits:
            more_fresh = suppressor.feed(tokens[at : hit.token])
            at = max(at, hit.token)
            fresh += more_fresh
            # What was found in what the reader has was told when it was shown first.
            if more_fresh or (hit.rule.action is Action.STOP and suppressor.done):
                new.append(hit._replace(token=len(fresh)))
        fresh += suppressor.feed(tokens[at:])
        return Portion(fresh, finish, ends_surely, new)

    async def judged(self, portion: Portion) -> Portion:
        """What a moderator lets pass of it. It is asked once a window is full, or the answer ends."""
        assert self._moderator is not None
        window = self._window
        if window is None:
            window = portion
        else:
            shift = len(window.tokens)
            window = Portion(
                window.tokens + portion.tokens,
                portion.finish,
                portion.ends_surely,
                window.hits + [hit._replace(token=hit.token + shift) for hit in portion.hits],
            )
        text = "".join(token.text for token in window.tokens)
        if len(text) < conf().moderation_window and window.finish is None:
            self._window = window
            return Portion([], None, False)
        self._window = None
        verdict = await self._verdict(self._moderator, text) if text else Verdict.PASS
        if verdict is Verdict.STOP:
            self._tell(self._moderator.name, Action.STOP, self._session.log.last_seq, 1)
            return Portion([], "content_filter", False)
        if verdict is Verdict.FLAG:
            self._tell(self._moderator.name, Action.FLAG, self._session.log.last_seq, 1)
        return window

    async def _verdict(self, moderator: Moderator, text: str) -> Verdict:
        """In time, or what stands for it."""
        try:
            async with asyncio.timeout(conf().moderation_seconds):
                return await moderator.judge(text)
        except TimeoutError:
            logger.warning("moderator %s gave no verdict in time", moderator.name)
        except Exception:  # others wrote it, and one of its faults must end no answer
            logger.exception("moderator %s gave no verdict", moderator.name)
        metrics.moderator_failed()
        return Verdict.STOP if conf().moderation_fails == "closed" else Verdict.PASS

    def note(self, hits: list[Hit], before: int) -> None:
        """Write down what was found in tokens that are in the log now, behind seq ``before``."""
        for rule, token in hits:
            self._tell(rule.name, rule.action, before + token, 1)

    def _tell(self, name: str, action: Action, seq: int, count: int) -> None:
        session = self._session
        metrics.content_rule_hit(action.value)
        told = session.told
        if told.events >= MOST_EVENTS and action is not Action.STOP:
            told.beyond[name, action] = told.beyond.get((name, action), 0) + count
        else:
            told.events += 1
            session.log.record(_event(session, name, action, seq, count))
        if action is Action.MASK or (name, action) in told.audited:
            return
        told.audited.add((name, action))
        session.log.record(
            session_changed(
                session.id, review=Review.NEEDED.value, content_action=action.value,
                content_rule=name,
            ),
            audit_record(
                f"content.{action.value}",
                subject=f"session:{session.id}",
                tenant_id=session.principal.tenant_id,
                session_id=session.id,
                reference=session.reference,
                rule=name,
                seq=seq,
            ),
        )  # fmt: skip

    def end(self) -> list[Record]:
        """The events for what was found beyond the first ones."""
        session = self._session
        beyond, session.told.beyond = session.told.beyond, {}
        return [
            _event(session, name, action, session.log.last_seq, count)
            for (name, action), count in beyond.items()
        ]


def _event(session: LiveSession, name: str, action: Action, seq: int, count: int) -> Record:
    data: dict[str, Any] = {"rule": name, "action": action.value, "count": count}
    return record_event(session.id, "filtered", seq, now(), **data)


async def screening_of(
    session: LiveSession, book: RuleBook, pool: AsyncConnectionPool, grade: SeamGrade
) -> Screening | None:
    """What has to be done to the next attempt of a session; None, at no cost: nothing."""
    tenant_id = session.principal.tenant_id
    if not session.has_rules:
        session.rules, session.has_rules = await book.of(tenant_id), True
    moderator = None
    if ports.moderator is not None:
        moderator = ports.moderator(
            Moderated(session_id=session.id, tenant_id=tenant_id, model=session.model)
        )
    if session.rules is None and moderator is None:
        return None
    before = ""
    if session.rules is not None and session.log.last_seq and grade is not SeamGrade.REGENERATED:
        before = await last_character(pool, session.log)
    content_filter = session.rules.filter(before) if session.rules else ContentFilter([])
    return Screening(session, content_filter, moderator)
