"""A live session: what its runner, its readers and the service share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from streaming.conf import conf
from streaming.core import log_fields
from streaming.core.chat import ChatRequest
from streaming.core.content_rules import RuleSet, Told
from streaming.core.delivery import Marks
from streaming.core.levels import Level
from streaming.core.limits import NO_LIMIT, Limit
from streaming.core.state import SessionState, check_move
from streaming.runtime.reader import Reader
from streaming.runtime.token_log import SessionLog


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbedGrant:
    """What an embed token allows its browser, and what it puts into its requests."""

    token_id: UUID
    expires_at: datetime
    origin: str = ""
    """Where it is good; empty: all origins of its tenant."""
    models: tuple[str, ...] = ()
    """Empty: all."""
    preset: Mapping[str, Any] = field(default_factory=dict)
    key_limit: Limit = NO_LIMIT
    """Of the key that it was minted with: it counts besides the token's own."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. Sessions belong to (tenant, end user).

    ``limit`` is the credential's own, ``tenant_limit`` and ``user_limit`` those of all that the tenant
    and each of its end users do. ``embed``: it came with an embed token.
    """

    tenant_id: int
    tenant: str
    api_key_id: int | None
    end_user: str = ""
    is_test: bool = False
    on_disconnect: str = "suspend"
    level: Level = Level.STANDARD
    variant: str = ""
    limit: Limit = NO_LIMIT
    tenant_limit: Limit = NO_LIMIT
    user_limit: Limit = NO_LIMIT
    origins: tuple[str, ...] = ()
    """Those of its tenant."""
    embed: EmbedGrant | None = None


@dataclass(frozen=True, slots=True)
class ControlEvent:
    """Something that happened between two tokens, for readers that asked to be told."""

    seq: int
    name: str
    data: dict[str, Any]


TOLD_SECONDS = 0.1
"""When a node dies its readers wait for tokens. Waking each of them to say so, and sending each a
ping, takes as long as half of what brings the tokens back."""
MOST_RETURNS = 8
RETURNS_SECONDS = 60.0
"""For so long it counts against a connection that readers have come back."""


@dataclass(slots=True, eq=False)
class LiveSession:
    """One answer in the making, in the process that owns it."""

    id: UUID
    reference: str
    principal: Principal
    request: ChatRequest
    model: str
    seed: int | None
    log: SessionLog
    request_id: str = ""
    """Of the request that began it."""
    rehearsal: list[int] = field(default_factory=list)
    """Tokens after which a test key wants its engine to fail."""
    created: int = field(default_factory=lambda: int(time.time()))
    trace: str = ""
    """The context in which it was asked for (``traceparent``), where somebody traces."""
    state: SessionState = SessionState.CREATED
    finish_reason: str = ""
    """Set with the last token: the answer is whole, whatever happens before it is closed."""
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    controls: list[ControlEvent] = field(default_factory=list)
    readers: set[Reader] = field(default_factory=set)
    health: int | None = None
    """The lowest score of connections that were told of (``Attachment.note_health``)."""
    _telling: asyncio.TimerHandle | None = None
    _returns: list[float] = field(default_factory=list)
    was_read: bool = False
    """Whether anybody has read it yet, since it was created, taken over or had to move."""
    lonely_since: float | None = None
    """Loop time since which nobody was seen reading it; a visit between two looks clears it too."""
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    """Whether its runner has taken its first step."""
    rules: RuleSet | None = None
    """The content rules that it keeps, once ``has_rules``; None: there are none."""
    has_rules: bool = False
    told: Told = field(default_factory=Told)
    error_code: str = ""
    """Of the error that has suspended it."""
    end_request: SessionEnd | None = None
    """Set when the session is asked to end; its runner does it."""

    def __repr__(self) -> str:
        return f"<LiveSession {self.reference} {self.state.value}: {len(self.readers)} readers, {self.log!r}>"

    def sign_log(self) -> None:
        """From here on the running task writes into the process's log in this session's name."""
        log_fields.begin(
            session_id=str(self.id),
            request_id=self.request_id,
            tenant_id=self.principal.tenant_id,
        )

    def move(self, to: SessionState) -> None:
        """Change state. Raises ``IllegalMove``."""
        check_move(self.state, to)
        self.state = to

    def tell(self, name: str, **data: Any) -> None:
        """Let readers know what happens to the answer, after the last token so far.

        They hear of it with the next tokens, and after ``TOLD_SECONDS`` if none have come by then.
        """
        self.controls.append(ControlEvent(self.log.last_seq, name, data))
        if self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(TOLD_SECONDS, self._tell_now)

    def _tell_now(self) -> None:
        self._telling = None
        if self.controls[-1].seq == self.log.last_seq:
            self.log.wake()

    @property
    def grace(self) -> float:
        """Seconds for which it goes on without a reader: one that has yet to come gets its time."""
        is_cancelled_at_once = self.principal.on_disconnect == "cancel" and self.was_read
        return 0.0 if is_cancelled_at_once else conf().grace_seconds

    def join(self, reader: Reader) -> None:
        """``reader`` reads it here."""
        self.was_read = True
        self.readers.add(reader)
        self.lonely_since = None

    @property
    def lowest_health(self) -> int | None:
        """Over its readers, those that have left included."""
        known = [self.health, *(reader.health for reader in self.readers)]
        return min((score for score in known if score is not None), default=None)

    def returned(self, now: float) -> int:
        """A reader has come back at ``now`` (loop time); how many have lately, this one included."""
        self._returns = [*self._returns[1 - MOST_RETURNS :], now]
        return sum(now - at < RETURNS_SECONDS for at in self._returns)

    def leave(self, reader: Reader) -> None:
        """``reader`` has gone. Its grace begins now, however short it stayed.

        What it was sent is known at once; what its socket has taken may still turn out.
        """
        self.readers.discard(reader)
        self.note_delivered(reader.marks)
        self.lonely_since = None

    def expect_back(self) -> None:
        """A reader was sent to another connection: it has not left, and gets its time to come."""
        self.was_read = False

    def note_delivered(self, marks: Marks) -> None:
        """How far a reader has come; stored with the next flush."""
        self.log.marks.learn(marks)

    def deny_delivery(self, cursor: int) -> None:
        """A reader has come back with no more than ``cursor``: see ``Marks.deny``.

        Connections that it has left behind may still be open here, and know no better.
        """
        self.log.marks.deny(cursor)
        for reader in self.readers:
            reader.marks.deny(cursor)

    def ask_to_end(self, end: SessionEnd) -> None:
        """Have the runner end the session; the first request counts. Does nothing after the end."""
        if self.end_request is None and not self.state.is_end:
            self.end_request = end
            # A task that is cancelled before its first step never runs at all.
            if self.task is not None and self.has_begun:
                self.task.cancel()


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ends, or is suspended. ``error`` is the OpenAI error object for the reader.

    ``resume_until``: of a suspension; None: as long from now as any.
    """

    state: SessionState
    finish_reason: str = ""
    cause: str = ""
    error: dict[str, Any] | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    resume_until: datetime | None = None

    @classmethod
    def completed(cls, finish_reason: str) -> SessionEnd:
        """The answer is whole."""
        return cls(SessionState.COMPLETED, finish_reason=finish_reason)
