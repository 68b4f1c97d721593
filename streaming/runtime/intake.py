"""The way of what an engine has produced into the log: compared, stopped, screened, appended."""

from __future__ import annotations

from collections.abc import Callable

from streaming.core.boundary import CleanBoundary
from streaming.core.chunks import Token, TokenChunk
from streaming.core.failures import AttemptFailed, Cause
from streaming.core.seams import Suppressor
from streaming.core.stop_strings import StopMatcher
from streaming.runtime.live import LiveSession
from streaming.runtime.records import session_changed
from streaming.runtime.screening import Portion, Screening


class Intake:
    """The tokens of one attempt.

    ``known``: the answer so far, where the engine begins anew. ``before_first`` is called before the
    first token enters the log; what it raises keeps it out. What takes chunks returns the finish
    reason with the last of them, and raises ``AttemptFailed`` or what has become of the log.
    """

    __slots__ = (
        "_before_first",
        "_boundary",
        "_number",
        "_rehearse_at",
        "_screening",
        "_session",
        "_stops",
        "_suppressor",
        "appended",
        "engine_finished",
        "first_seq",
        "generated",
        "is_plain",
        "last_seq",
    )

    def __init__(
        self,
        session: LiveSession,
        number: int,
        known: str,
        screening: Screening | None,
        before_first: Callable[[], None],
    ) -> None:
        log = session.log
        self._session = session
        self._number = number
        self._screening = screening
        self._before_first = before_first
        self._boundary = CleanBoundary()
        self._stops = StopMatcher(session.request.stop)
        self._suppressor = Suppressor(known, list(log.token_ids)) if known else None
        self._rehearse_at = min((n for n in session.rehearsal if n >= log.last_seq), default=None)
        self.is_plain = not (screening or known or session.request.stop)
        """Whether nothing is held back, changed or compared: tokens go into the log as they come."""
        self.generated = 0
        """Tokens read from the engine."""
        self.appended = 0
        """Of them, those in the log."""
        self.first_seq = log.last_seq + 1
        self.last_seq = 0
        """Of its own tokens: others append to the same log. 0: it has none."""
        self.engine_finished = False
        """Whether the engine itself said that the request is over."""

    def __repr__(self) -> str:
        return f"<Intake of attempt {self._number}: {self.appended} of {self.generated}>"

    @property
    def repeated(self) -> int:
        """Tokens that were in the log already."""
        return self._suppressor.repeated_tokens if self._suppressor is not None else 0

    @property
    def discarded(self) -> int:
        """Without text yet, held back, behind a stop string, or of an attempt that was overtaken."""
        return self.generated - self.appended - self.repeated

    def take(self, chunks: list[TokenChunk]) -> str | None:
        """Append what one network read brought."""
        if self.is_plain and self._rehearse_at is None:
            return self._take_plain(chunks)
        for chunk in chunks:
            finish = self._keep(self._portion(chunk))
            if finish is not None:
                return finish
        return None

    async def take_moderated(self, chunks: list[TokenChunk]) -> str | None:
        """``take``, where somebody is asked before anything is shown."""
        assert self._screening is not None
        for chunk in chunks:
            portion = await self._screening.judged(self._portion(chunk))
            finish = self._keep(portion)
            if finish is not None:
                return finish
        return None

    def _take_plain(self, chunks: list[TokenChunk]) -> str | None:
        """All of it goes in together."""
        log = self._session.log
        if log.lost is not None:
            raise log.lost
        ids: list[int] = []
        texts: list[str] = []
        finish = None
        ends_surely = True
        for chunk in chunks:
            count = len(chunk.token_ids)
            self.generated += count
            if self._boundary.join(chunk, ids, texts):
                ends_surely = count == 1
            finish = chunk.finish_reason
            if finish is not None:
                break
        self.engine_finished = finish is not None
        if ids:
            if not self.appended:
                self._before_first()
            log.extend(ids, texts, self._number, ends_surely=ends_surely)
            self._note_appended(len(ids))
        if finish is not None:
            self._note_finish(finish)
        return finish

    def _portion(self, chunk: TokenChunk) -> Portion:
        """What of a chunk may be shown."""
        self.generated += len(chunk.token_ids)
        if self._session.log.lost is not None:
            raise self._session.log.lost
        tokens = self._boundary.feed(chunk)
        # What content rules have changed can only be compared with what they have changed, too.
        compared_last = self._screening is not None
        if self._suppressor is not None and not compared_last:
            tokens = self._suppressor.feed(tokens)
        stopped = False
        if tokens and self._session.request.stop:
            tokens, stopped = self._stops.feed(tokens)
        self.engine_finished = chunk.finish_reason is not None
        finish = "stop" if stopped else chunk.finish_reason
        if finish is not None and not stopped:
            tokens = [*tokens, *self._stops.flush()]
        ends_surely = len(chunk.token_ids) == 1 and not self._stops.held_tokens
        portion = Portion(tokens, finish, ends_surely)
        if self._screening is not None:
            portion = self._screening.screen(portion, self._suppressor)
        if (
            portion.finish is not None
            and self._suppressor is not None
            and not self._suppressor.done
        ):
            raise AttemptFailed(Cause.MISMATCH, "the regenerated answer ended too early")
        return portion

    def _keep(self, portion: Portion) -> str | None:
        """Append it. Raises ``AttemptFailed`` also where a test wants that."""
        log, rehearse_at = self._session.log, self._rehearse_at
        tokens = portion.tokens
        # A match of a content rule is never cut in two, nor is anything asked for behind the end.
        may_rehearse = self._screening is None or portion.finish is None
        if may_rehearse and rehearse_at is not None and log.last_seq + len(tokens) > rehearse_at:
            if self._screening is None:
                tokens = tokens[: rehearse_at - log.last_seq]
                # The log never ends inside a character, where tokens have no text yet.
                while tokens and not tokens[-1].text:
                    tokens.pop()
            self._append(tokens, portion)
            self._session.rehearsal.remove(rehearse_at)
            raise AttemptFailed(Cause.REHEARSAL, f"rehearsed after token {rehearse_at}")
        self._append(tokens, portion)
        if portion.finish is not None:
            self._note_finish(portion.finish)
        return portion.finish

    def _append(self, tokens: list[Token], portion: Portion) -> None:
        log = self._session.log
        before = log.last_seq
        if tokens:
            if not self.appended:
                self._before_first()
            log.append(tokens, self._number, ends_surely=portion.ends_surely)
            self._note_appended(len(tokens))
        if portion.hits and self._screening is not None:
            self._screening.note(portion.hits, before)

    def _note_appended(self, count: int) -> None:
        self.appended += count
        self.last_seq = self._session.log.last_seq

    def _note_finish(self, finish: str) -> None:
        """Store it in the flush of the last tokens: whoever takes the session over before its
        terminal record is written must know that no engine may be asked for more."""
        session = self._session
        session.finish_reason = finish
        session.log.record(session_changed(session.id, finish_reason=finish))
