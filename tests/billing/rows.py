"""Rows as gateways write them, for tests of billing: tenants, prices, and sessions step by step.

story = Story(prompt=12)
story.attempt("a")
story.tokens(5)
story.fail("engine_crash", discarded=2)
story.attempt("b", grade="exact")
story.tokens(7)
story.deliver(12)
story.end("completed")
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.utils import timezone

from billing.models import PriceList, PricePlan
from billing.services import audit
from billing.services.settlement import settle_due
from streaming.core.digest import RunningDigest
from streaming.core.ids import reference_code
from streaming.models import (
    ApiKey,
    Attempt,
    OutboxMessage,
    SessionEvent,
    SessionFence,
    StreamSession,
    Tenant,
    TokenCheckpoint,
)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
TOKEN = b"\x01\x00\x00\x00"
MARKS = {"socket": "taken_seq", "cursor": "cursor_seq", "ack": "acked_seq"}


def add_tenant(name: str = "acme", **columns: Any) -> Tenant:
    """The tenant of that name, made when there is none."""
    return Tenant.objects.get_or_create(name=name, defaults=columns)[0]


def add_key(tenant: Tenant, **columns: Any) -> ApiKey:
    """One more API key of a tenant."""
    number = ApiKey.objects.count() + 1
    columns = {"prefix": f"ub-test-{number}", "key_hash": f"{number:064x}", **columns}
    return ApiKey.objects.create(tenant=tenant, **columns)


def add_plan(
    tenant: Tenant | None = None,
    model: str = "",
    *,
    input: str = "1",
    cached: str = "0.25",
    output: str = "4",
    cost: str | None = None,
    **columns: Any,
) -> PricePlan:
    """A price plan, by default everybody's for everything, in EUR, since long ago."""
    prices, _ = PriceList.objects.get_or_create(tenant=tenant, model=model)
    columns = {"currency": "EUR", "effective_from": LONG_AGO, "created_by": "user:pat", **columns}
    plan = PricePlan.objects.create(
        list=prices,
        input_per_million=Decimal(input),
        cached_input_per_million=Decimal(cached),
        output_per_million=Decimal(output),
        cost_per_million=None if cost is None else Decimal(cost),
        **columns,
    )
    plan.refresh_from_db()
    audit.append_many([audit.draft_of("price.set", plan, actor="system", tenant_id=None)])
    return plan


class Story:
    """A session as gateways store it. Each step writes what their journal would, and where
    billing has to hear of it announces it. ``at``: when the steps happen; None: when they do."""

    def __init__(
        self,
        tenant: Tenant | None = None,
        *,
        prompt: int | None = 10,
        cached: int | None = None,
        at: datetime | None = None,
        **columns: Any,
    ) -> None:
        self.at = at
        self.digest = RunningDigest()
        self.number = 0
        columns = {
            "tenant": tenant or add_tenant(), "model": "m", "model_requested": "m",
            "state": "streaming", "created_at": self.now, **columns,
        }  # fmt: skip
        self.session = StreamSession.objects.create(
            reference=reference_code(), protocol="openai", request=b"{}",
            prompt_tokens=prompt, cached_prompt_tokens=cached, **columns,
        )  # fmt: skip
        self.fence = SessionFence.objects.create(session=self.session, epoch=1, durable_seq=0)

    @property
    def now(self) -> datetime:
        return self.at or timezone.now()

    @property
    def log(self) -> int:
        """Tokens in the log."""
        return self.fence.durable_seq - (self.session.ended_at is not None)

    @property
    def generated(self) -> int:
        """Tokens that engines have generated for it."""
        rows = Attempt.objects.filter(session=self.session)
        return self.log + sum(row.discarded_tokens + row.repeated_tokens for row in rows)

    def attempt(self, node: str = "a", *, grade: str = "", **columns: Any) -> Attempt:
        """A node begins to answer, or goes on."""
        self.number += 1
        self._change(state="streaming")
        return Attempt.objects.create(
            session=self.session, number=self.number, epoch=self.fence.epoch, node_name=node,
            engine_request_id=f"{self.session.pk}-{self.number}", seam_grade=grade,
            started_at=self.now, **columns,
        )  # fmt: skip

    def tokens(self, count: int) -> None:
        """A flush of the attempt's tokens."""
        first = self.fence.durable_seq + 1
        self.digest.update(TOKEN * count, b"x" * count)
        self._row(first, first + count - 1, count)

    def end_attempt(
        self, reason: str = "finished", *, discarded: int = 0, repeated: int = 0, cause: str = ""
    ) -> None:
        """The attempt is over, and its owner writes that down."""
        rows = TokenCheckpoint.objects.filter(session=self.session, attempt=self.number)
        first = min((row.first_seq for row in rows), default=None)
        last = max((row.last_seq for row in rows), default=None)
        tokens = sum(row.last_seq - row.first_seq + 1 for row in rows)
        Attempt.objects.filter(session=self.session, number=self.number).update(
            ended_at=self.now, end_reason=reason, cause=cause, first_seq=first, last_seq=last,
            discarded_tokens=discarded, repeated_tokens=repeated,
            generated_tokens=tokens + discarded + repeated,
        )  # fmt: skip

    def fail(self, cause: str = "engine_crash", **counts: int) -> None:
        """Its engine breaks off."""
        self.end_attempt("connection_reset", cause=cause, **counts)
        self._change(state="recovering")

    def crash(self) -> None:
        """The gateway dies: somebody takes the session over, and knows nothing of the attempt."""
        self._move_fence(epoch=self.fence.epoch + 1)
        Attempt.objects.filter(session=self.session, ended_at=None).update(
            ended_at=self.now, end_reason="gateway_crash", cause="gateway_crash"
        )
        self._change(state="recovering")

    def deliver(self, seq: int, *, by: str = "ack", announce: bool = False) -> None:
        """Evidence that tokens up to ``seq`` were written and delivered."""
        self._move_fence(sent_seq=max(seq, self.fence.sent_seq), **{MARKS[by]: seq})
        if announce:
            self.announce("session_delivered")

    def deny(self, cursor: int, *, announce: bool = False) -> None:
        """A reader comes back and has less than sockets had said."""
        self._move_fence(
            taken_seq=min(self.fence.taken_seq, cursor),
            cursor_seq=max(self.fence.cursor_seq, cursor),
        )
        if announce:
            self.announce("session_delivered")

    def send(self, seq: int) -> None:
        """Written whole, up to ``seq``."""
        self._move_fence(sent_seq=seq)

    def suspend(self, cause: str = "client_gone") -> None:
        """Nobody reads it any more."""
        if Attempt.objects.filter(session=self.session, ended_at=None).exists():
            self.end_attempt("cancelled")
        self._change(state="suspended", cause=cause, suspended_at=self.now)
        self._tell("suspended", cause, "session_suspended")

    def end(self, state: str = "completed", cause: str = "") -> None:
        """Close the log."""
        if Attempt.objects.filter(session=self.session, ended_at=None).exists():
            self.end_attempt("finished" if state == "completed" else "cancelled")
        log = self.fence.durable_seq
        self._row(log + 1, log + 1, 0, terminal=b"{}")
        self._change(state=state, cause=cause, ended_at=self.now, completion_tokens=log)
        self._tell(state, cause, "session_ended")

    def announce(self, kind: str) -> OutboxMessage:
        """Have billing hear of it."""
        return OutboxMessage.objects.create(
            session_id=self.session.pk, kind=kind, created_at=self.now
        )

    def purge(self) -> None:
        """Its content is forgotten."""
        TokenCheckpoint.objects.filter(session=self.session).delete()
        self._change(purged_at=self.now, log_digest=self.digest.digest())

    def _tell(self, event: str, cause: str, message: str) -> None:
        at = self.now
        SessionEvent.objects.create(
            session=self.session, at=at, kind=event, seq=self.fence.durable_seq,
            data={"cause": cause},
        )  # fmt: skip
        OutboxMessage.objects.create(session_id=self.session.pk, kind=message, created_at=at)

    def _row(self, first: int, last: int, tokens: int, terminal: bytes | None = None) -> None:
        TokenCheckpoint.objects.create(
            session=self.session, epoch=self.fence.epoch, attempt=max(self.number, 1),
            first_seq=first, last_seq=last, token_ids=TOKEN * tokens, text=b"x" * tokens,
            text_ends=b"".join((n + 1).to_bytes(4, "little") for n in range(tokens)),
            digest=self.digest.digest(), terminal=terminal, created_at=self.now,
        )  # fmt: skip
        self._move_fence(durable_seq=last)

    def _move_fence(self, **columns: Any) -> None:
        SessionFence.objects.filter(pk=self.session.pk).update(**columns)
        self.fence.refresh_from_db()

    def _change(self, **columns: Any) -> None:
        StreamSession.objects.filter(pk=self.session.pk).update(**columns)
        self.session.refresh_from_db()


def ended_session(
    tokens: int = 10,
    *,
    delivered: int | None = None,
    state: str = "completed",
    cause: str = "",
    node: str = "a",
    ago: timedelta | None = None,
    **story: Any,
) -> Story:
    """A session of one attempt that has ended; by default all of it was delivered."""
    if ago is not None:
        story["at"] = timezone.now() - ago
    told = Story(**story)
    told.attempt(node)
    if tokens:
        told.tokens(tokens)
    told.deliver(tokens if delivered is None else delivered)
    told.end(state, cause)
    return told


def settle_all(limit: int = 200) -> dict[str, int]:
    """Settle until nothing is due, as the worker does in one run after the other; their sum."""
    total: dict[str, int] = {}
    while True:
        result = settle_due(limit)
        for name, value in result.items():
            total[name] = total.get(name, 0) + value
        if not result["more"]:
            return total
