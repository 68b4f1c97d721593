"""One session, step by step, as gateways would have written it down."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from gateway_project.demo.answers import Answer
from gateway_project.demo.copying import Batch, Copied, moment
from gateway_project.demo.faults import Fault
from gateway_project.demo.fleet import ALIASES, MODELS, Customer, World
from streaming.core.attribution import attribute_end
from streaming.core.digest import RunningDigest
from streaming.core.seams import SeamGrade
from streaming.core.state import SessionState
from streaming.errors import GatewayError

GRACE_SECONDS = 3.0
RESUME_SECONDS = 900.0
_NO_TOKENS = RunningDigest().digest()
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PACES = {"llama-3.1-8b-instruct": (0.011, 0.022), "qwen2.5-32b-instruct": (0.026, 0.045)}
_FINISHED = "finished"
OPEN = b"\t\\N\tt"
"""The end of a row of the log that does not close it."""


@dataclass(slots=True)
class Try:
    """One attempt. Times are Unix times and, where named so, milliseconds."""

    number: int
    kind: str
    node: str
    epoch: int
    grade: str
    started_at: float
    wait: float
    """Seconds until its first token."""
    first_at: float | None = None
    ended_at: float | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    reason: str = ""
    detail: str = ""
    cause: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    detection_ms: float | None = None
    recovery_ms: float | None = None
    discarded: int = 0
    repeated: int = 0
    is_noted: bool = True
    """Whether its gateway lived to write down what it came to."""

    @property
    def generated(self) -> int:
        own = 0 if self.first_seq is None else (self.last_seq or 0) - self.first_seq + 1
        return own + self.discarded + self.repeated


class Course:
    """``now``: the Unix time that it has come to; ``done``: the flushes of its answer by then."""

    def __init__(
        self,
        world: World,
        chance: random.Random,
        *,
        customer: Customer,
        model: str,
        answer: Answer,
        at: float,
    ) -> None:
        self.world, self.chance, self.customer = world, chance, customer
        self.model, self.answer = model, answer
        self.created_at = self.now = at
        self.pace = chance.uniform(*_PACES[model])
        self.first_wait = min(chance.lognormvariate(-1.5, 0.5), 4.0)
        self.protocol = chance.choices(("openai", "sessions", "websocket"), (70, 18, 12))[0]
        self.process = chance.randrange(2)
        self.owner = world.gateway(at, self.process)
        self.user = customer.user(chance)
        self.done = 0
        self.epoch = 1
        self.tries: list[Try] = []
        self.is_read = False
        self._visits = chance.randrange(5000)
        self.sent = self.taken = self.cursor = self.acked = 0
        self.first_token_at: float | None = None
        self.failed_at: float | None = None
        self.failovers = 0
        self.state = SessionState.STREAMING
        self.finish_reason = self.error_code = self.cause = ""
        self.evidence: dict[str, Any] = {}
        self.suspended_at: float | None = None
        self.ended_at: float | None = None
        self._events: list[tuple[float, str, int, dict[str, Any]]] = []
        self._announced: list[tuple[str, float]] = []
        self._flushed: list[tuple[float, int, int]] = []
        """Of each flush the time, the epoch and the attempt; the terminal record comes behind them."""
        self._terminal = b""

    # Its course

    @property
    def tokens(self) -> int:
        """Those in the log."""
        return self.answer.until(self.done)

    @property
    def flushes(self) -> int:
        return len(self.answer.cuts)

    @property
    def is_plain(self) -> bool:
        """Whether nothing has happened that anybody would want explained."""
        return (
            self.state in (SessionState.COMPLETED, SessionState.STOPPED)
            and len(self.tries) == 1
            and self.is_read
        )

    def happens_at(self, at: float) -> None:
        """Have it begun earlier or later, so that it is where it is now at that Unix time."""
        by = at - self.now
        self.created_at += by
        self.now = at
        self._events = [(then + by, *rest) for then, *rest in self._events]  # type: ignore[misc]
        self._flushed = [(then + by, *rest) for then, *rest in self._flushed]  # type: ignore[misc]
        for run in self.tries:
            run.started_at += by
            run.first_at = None if run.first_at is None else run.first_at + by
        if self.first_token_at is not None:
            self.first_token_at += by

    def begin(self, node: str) -> None:
        self.tell("created", protocol=self.protocol)
        self.read()
        self.attempt(node)

    def read(self, cursor: int = 0) -> None:
        """Somebody connects, and has the tokens up to ``cursor`` already."""
        self.is_read = True
        self.cursor = max(self.cursor, cursor)
        self.sent = max(self.sent, cursor)
        self._visits += 1
        self.tell("reader_joined", cursor, **self._reader, protocol=self.protocol, cursor=cursor)

    @property
    def _reader(self) -> dict[str, Any]:
        return {"reader": f"{self.owner}-{self._visits}", "process": self.owner}

    def leave(self, how: str) -> None:
        """The only reader is gone; the last that was sent it may not have got."""
        self.is_read = False
        self.sent = self.tokens
        self.taken = self.answer.until(max(self.done - self.chance.randrange(3), 0))
        self.tell("reader_left", self.sent, **self._reader, how=how)

    def attempt(
        self, node: str, kind: str = "first", grade: str = "", wait: float | None = None
    ) -> None:
        self.now += 0.004
        wait = self.first_wait if wait is None else wait
        number = len(self.tries) + 1
        self.tries.append(Try(number, kind, node, self.epoch, grade, self.now, wait))

    def flow(self, flushes: int) -> None:
        """The engine of the last attempt goes on, up to that flush."""
        run = self.tries[-1]
        cuts, chance, pace = self.answer.cuts, self.chance, self.pace
        for at in range(self.done, flushes):
            first = cuts[at - 1] if at else 0
            self.now += (cuts[at] - first) * pace * (0.85 + 0.35 * chance.random())
            if run.first_at is None:
                self._first_token(run, first)
            self._flushed.append((self.now, self.epoch, run.number))
        if flushes > self.done:
            run.last_seq = cuts[flushes - 1]
            self.done = flushes
        if self.is_read:
            self.sent = self.taken = self.tokens

    def _first_token(self, run: Try, before: int) -> None:
        self.now += run.wait
        run.first_at = self.now
        run.first_seq = before + 1
        if self.first_token_at is None:
            self.first_token_at = self.now
        if run.grade == SeamGrade.REGENERATED.value:
            run.repeated = before
        if self.failed_at is not None:
            run.recovery_ms = (self.now - self.failed_at) * 1000
            self.tell(
                "moved" if run.kind == "migration" else "recovered",
                node=run.node,
                grade=run.grade,
                gap_ms=round(run.recovery_ms, 1),
            )
            self.failed_at = None

    def end_attempt(self, reason: str, run: Try | None = None, **columns: Any) -> None:
        run = run or self.tries[-1]
        run.ended_at, run.reason = self.now, reason
        for name, value in columns.items():
            setattr(run, name, value)

    def fail(self, fault: Fault, siblings: int = 0) -> None:
        """The engine of the last attempt fails; ``siblings``: other streams that it takes along."""
        run = self.tries[-1]
        silence = self.chance.uniform(*fault.noticed)
        if silence > 5.0:
            self.tell("engine_silent", node=run.node, seconds=round(silence / 2, 1))
        self.now += silence + (0.0 if fault.begun else self.chance.uniform(0.01, 0.3))
        cause, evidence = fault.judged(self.chance, silence, siblings)
        self.end_attempt(
            fault.seen.value,
            detail=fault.said,
            cause=cause,
            evidence=evidence,
            detection_ms=silence * 1000,
            discarded=self.chance.choice((0, 0, 0, 1, 2)) if run.first_seq else 0,
        )
        self.cause, self.evidence = cause, evidence
        self.tell("recovering", node=run.node, cause=fault.seen.value)
        self.failovers += 1
        if self.failed_at is None:
            self.failed_at = self.now

    def hedge(self, fault: Fault, node: str, siblings: int = 0) -> None:
        """The engine falls silent, and another one that is asked as well goes on."""
        run = self.tries[-1]
        silence = self.chance.uniform(1.2, 3.5)
        self.now += silence
        at, self.now = self.now, self.now + 0.002
        self.attempt(node, "hedge", SeamGrade.EXACT.value, self.chance.uniform(0.05, 0.4))
        self._events.append(
            (at, "hedged", self.tokens,
             {"node": node, "silent": run.node, "silent_ms": round(silence * 1000)})
        )  # fmt: skip
        cause, evidence = fault.judged(self.chance, silence, siblings)
        self.flow(self.done + 1)
        self.tell("hedge_won", node=node, silent=run.node)
        self.end_attempt(
            "overtaken", run, detail="another attempt produced the next token",
            cause=cause, evidence=evidence,
        )  # fmt: skip

    def move(self, node: str) -> None:
        """Its node is drained."""
        run = self.tries[-1]
        self.end_attempt("migrated", detail=f"{run.node} is being drained")
        self.failed_at = self.now
        self.tell("moving", node=run.node)
        self.attempt(node, "migration", SeamGrade.EXACT.value, self.chance.uniform(0.02, 0.12))

    def suspend(self, what: str) -> None:
        """Its engine is let go, its log is kept. ``what``: as in ``core.attribution``."""
        if self.tries[-1].ended_at is None:
            self.end_attempt("cancelled")
        self.state = SessionState.SUSPENDED
        blame, self.evidence = attribute_end(what)
        self.cause = blame.value
        self.suspended_at = self.now
        self.tell("suspended", cause=self.cause)
        self._announced.append(("session_suspended", self.now))

    def take_over(self, reason: str) -> None:
        """Another process goes on with it."""
        former, self.process = self.owner, self.process + 1
        self.owner = self.world.gateway(self.now, self.process)
        self.epoch += 1
        if self.tries[-1].ended_at is None:
            self.end_attempt(
                reason, cause="gateway_crash", is_noted=False,
                evidence={"because": "The gateway process that owned it died.", "gateway": former},
            )  # fmt: skip
        self._events.append(
            (self.now, "taken_over", self.tokens,
             {"from": former, "to": self.owner, "reason": reason})
        )  # fmt: skip
        self.failed_at = self.now
        self.state = SessionState.RECOVERING
        self.cause, self.evidence = "", {}

    def finish(self) -> None:
        """The answer is whole."""
        self.end_attempt(_FINISHED)
        self.finish_reason = "length" if self.chance.random() < 0.06 else "stop"
        self.cause, self.evidence = "", {}
        self.close(SessionState.COMPLETED)

    def end(self, state: SessionState, what: str, error: GatewayError | None = None) -> None:
        """It ends in another way; ``what``: as in ``core.attribution``, empty: as its last attempt."""
        if self.tries and self.tries[-1].ended_at is None:
            self.end_attempt("cancelled")
        if what:
            blame, self.evidence = attribute_end(what)
            self.cause = blame.value
        elif error is not None:
            self.evidence = {**self.evidence, "error": error.code}
        self.close(state, error)

    def close(self, state: SessionState, error: GatewayError | None = None) -> None:
        """The terminal record: it has a seq of its own."""
        self.now += 0.003
        self.state, self.ended_at = state, self.now
        terminal: dict[str, Any] = {
            "state": state.value,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.answer.prompt_tokens,
            "cached_prompt_tokens": self.answer.cached_tokens,
        }
        if error is not None:
            terminal["error"] = error.as_openai()["error"]
            self.error_code = error.code
        self._terminal = json.dumps(terminal).encode()
        seq = self.tokens + 1
        self.tell(state.value, seq, cause=self.cause)
        self._announced.append(("session_ended", self.now))
        if self.is_read:
            self.sent = self.taken = seq
            if self.protocol != "openai" and self.chance.random() < 0.5:
                self.acked = seq

    def tell(self, kind: str, seq: int | None = None, **data: Any) -> None:
        """A line of its time line."""
        self._events.append((self.now, kind, self.tokens if seq is None else seq, data))

    # Its rows

    def write(self, batch: Batch, *, announced: bool) -> None:
        """Everything that is stored of it; ``announced``: have billing hear of it."""
        answer, ended = self.answer, self.ended_at is not None
        session_id = _uuid7(self.created_at, self.chance)
        resume_until = None
        if self.state is SessionState.SUSPENDED and self.suspended_at is not None:
            resume_until = moment(self.suspended_at + RESUME_SECONDS)
        letters = "".join(self.chance.choices(_LETTERS, k=6))
        batch.add(
            "streaming_streamsession",
            (
                session_id, f"{letters[:3]}-{letters[3:]}", self.customer.id,
                self.chance.choices(self.customer.keys, (4, 1)[: len(self.customer.keys)])[0],
                self.user, f"req_{self.chance.getrandbits(64):016x}", self.protocol, self.model,
                ALIASES[self.model], answer.request, self.chance.getrandbits(31),
                answer.prompt_ids, answer.prompt_tokens, self.state.value, self.finish_reason,
                self.error_code, self.cause, self.evidence, "suspend", _at(self.suspended_at),
                resume_until, self.owner, answer.cached_tokens, self.tokens,
                sum(run.discarded + run.repeated for run in self.tries), self.failovers,
                moment(self.created_at), _at(self.first_token_at), _at(self.ended_at),
            ),
        )  # fmt: skip
        marks = (self.sent, self.taken, self.cursor, self.acked)
        batch.add("session_fence", (session_id, self.epoch, self.tokens + ended, *marks, False))
        for run in self.tries:
            batch.add("streaming_attempt", self._columns(run, session_id))
        for at, kind, seq, data in sorted(self._events, key=lambda event: event[0]):
            batch.add("streaming_sessionevent", (session_id, moment(at), kind, seq, data))
        self._write_log(batch, session_id)
        if announced:
            for kind, at in self._announced:
                batch.add("streaming_outboxmessage", (session_id, kind, {}, moment(at)))
        if self.chance.random() < 0.04:
            batch.add(
                "streaming_idempotencykey",
                (
                    self.customer.id, self.user, f"order-{self.chance.getrandbits(40):010x}",
                    self.chance.randbytes(32), session_id, moment(self.created_at),
                ),
            )  # fmt: skip
        batch.sessions += 1
        if self.is_plain:
            batch.plain.append(session_id)

    def _write_log(self, batch: Batch, session_id: UUID) -> None:
        head = f"{session_id}\t"
        for number, (at, epoch, attempt) in enumerate(self._flushed):
            line = f"{head}{epoch}\t{attempt}\t{moment(at)}\t".encode()
            batch.add_copied("streaming_tokencheckpoint", line + self.answer.rows[number] + OPEN)
        if self._terminal:
            seq, nothing = self.tokens + 1, b""
            digest = self.answer.digests[self.done - 1] if self.done else _NO_TOKENS
            batch.add(
                "streaming_tokencheckpoint",
                (
                    session_id, self.epoch, max(len(self.tries), 1), moment(self.ended_at or 0.0),
                    seq, seq, nothing, nothing, nothing, digest, self._terminal, True,
                ),
            )  # fmt: skip
        batch.checkpoints += len(self._flushed) + bool(self._terminal)

    def _columns(self, run: Try, session_id: UUID) -> tuple[Any, ...]:
        finished = run.reason == _FINISHED
        prompt = self.answer.prompt_tokens
        if run.grade in (SeamGrade.EXACT.value, SeamGrade.TEXT.value) and run.first_seq:
            prompt += run.first_seq - 1
        ttft = None if run.first_at is None else (run.first_at - run.started_at) * 1000
        is_noted = run.is_noted
        return (
            session_id, run.number, run.kind, run.epoch, self.world.nodes[run.node], run.node,
            f"{session_id}-{run.number}", run.grade, "", moment(run.started_at),
            _at(run.first_at) if is_noted else None, _at(run.ended_at),
            run.first_seq if is_noted else None, run.last_seq if is_noted else None, run.reason,
            run.detail, run.cause, run.evidence, "" if finished else "verified",
            None if finished or run.ended_at is None else moment(run.ended_at + 0.8),
            ttft if is_noted else None, run.detection_ms, run.recovery_ms,
            self.answer.cached_tokens if finished and not run.grade else None,
            run.generated if is_noted else 0, run.discarded, run.repeated,
            prompt if finished else None, run.generated if finished else None,
        )  # fmt: skip

    def other_node(self, *former: str) -> str:
        """One that serves the same model."""
        return self.chance.choice([name for name in MODELS[self.model] if name not in former])


def _at(value: float | None) -> Copied | None:
    return None if value is None else moment(value)


def _uuid7(at: float, chance: random.Random) -> UUID:
    """As ``core.ids.uuid7``, of another time."""
    value = int(at * 1000) << 80 | chance.getrandbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)
