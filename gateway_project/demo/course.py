"""One session, step by step, as gateways would have written it down."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from gateway_project.demo.answers import Answer
from gateway_project.demo.faults import Fault
from gateway_project.demo.fleet import MODELS, Customer, World
from streaming.core.attribution import attribute_end
from streaming.core.seams import SeamGrade
from streaming.core.state import SessionState
from streaming.errors import GatewayError

GRACE_SECONDS = 3.0
RESUME_SECONDS = 900.0
_PACES = {"llama-3.1-8b-instruct": (0.011, 0.022), "qwen2.5-32b-instruct": (0.026, 0.045)}
FINISHED = "finished"


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
    """``now``: the Unix time that it has come to; ``done``: the flushes of its answer by then.

    ``process``: which of the two gateways of that time has it; None: either.
    """

    def __init__(
        self,
        world: World,
        chance: random.Random,
        *,
        customer: Customer,
        model: str,
        answer: Answer,
        at: float,
        process: int | None = None,
    ) -> None:
        self.world, self.chance, self.customer = world, chance, customer
        self.model, self.answer = model, answer
        self.created_at = self.now = at
        self.pace = chance.uniform(*_PACES[model])
        self.first_wait = min(chance.lognormvariate(-1.5, 0.5), 4.0)
        self.protocol = chance.choices(("openai", "sessions", "websocket"), (70, 18, 12))[0]
        self.process = chance.randrange(2) if process is None else process
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
        self.events: list[tuple[float, str, int, dict[str, Any]]] = []
        self.announced: list[tuple[str, float]] = []
        self.flushed: list[tuple[float, int, int]] = []
        """Of each flush the time, the epoch and the attempt; the terminal record comes behind them."""
        self.terminal = b""

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
        self.events = [(then + by, *rest) for then, *rest in self.events]  # type: ignore[misc]
        self.flushed = [(then + by, *rest) for then, *rest in self.flushed]  # type: ignore[misc]
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
        protocol = "sse" if self.protocol == "sessions" else self.protocol
        self.tell("reader_joined", cursor, **self._reader, protocol=protocol, cursor=cursor)

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
            tokens = cuts[at] - first
            if run.first_at is None:
                self._first_token(run, first)
                tokens -= 1
            self.now += tokens * pace * (0.85 + 0.35 * chance.random())
            self.flushed.append((self.now, self.epoch, run.number))
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
        self.events.append(
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

    def suspend(self, what: str, error: GatewayError | None = None) -> None:
        """Its engine is let go, its log is kept. ``what``: as in ``core.attribution``, empty: as its
        last attempt. ``error``: its reader is told."""
        if self.tries[-1].ended_at is None:
            self.end_attempt("cancelled")
        self.state = SessionState.SUSPENDED
        if what:
            blame, self.evidence = attribute_end(what)
            self.cause = blame.value
        self.suspended_at = self.now
        told: dict[str, Any] = {"cause": self.cause}
        if error is not None:
            told |= error.as_openai()
            self.error_code = error.code
            self.evidence = {**self.evidence, "error": error.code}
        self.tell("suspended", **told)
        self.announced.append(("session_suspended", self.now))

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
        self.events.append(
            (self.now, "taken_over", self.tokens,
             {"from": former, "to": self.owner, "reason": reason})
        )  # fmt: skip
        self.failed_at = self.now
        self.state = SessionState.RECOVERING
        self.error_code, self.cause, self.evidence = "", "", {}

    def finish(self) -> None:
        """The answer is whole."""
        self.end_attempt(FINISHED)
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
            terminal["error"] = {**error.as_openai()["error"], "resumable": False}
            self.error_code = error.code
        self.terminal = json.dumps(terminal).encode()
        seq = self.tokens + 1
        self.tell(state.value, seq, cause=self.cause)
        self.announced.append(("session_ended", self.now))
        if self.is_read:
            self.sent = self.taken = seq
            if self.protocol != "openai" and self.chance.random() < 0.5:
                self.acked = seq

    def tell(self, kind: str, seq: int | None = None, **data: Any) -> None:
        """A line of its time line."""
        self.events.append((self.now, kind, self.tokens if seq is None else seq, data))

    def other_node(self, *former: str) -> str:
        """One that serves the same model."""
        return self.chance.choice([name for name in MODELS[self.model] if name not in former])
