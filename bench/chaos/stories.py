"""One question and its answer as each kind of reader lives through it, over all its connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson

from bench.chaos.job import Job, Question
from bench.chaos.records import FaultKind, Gap, StreamRecord
from bench.chaos.schedule import Course, Cut
from bench.chaos.wire import Events, Exchange, request

SILENCE_NOTED = 0.05
"""Seconds beyond the pace from which a silence is written down."""
CUT_BEFORE_HEAD = 0.003
SDK_RETRIES = 2
SDK_PAUSE = 0.5
"""As OpenAI's clients do it: before an answer has begun they ask again, after this or twice this."""
LONGEST_PAUSE = 1.0
FINISHED = ("stop", "length")
ReportCut = Callable[[FaultKind, int, float], None]


class Story:
    """What all readers do: note tokens, silences and the end. ``run`` returns the record.

    Each connection is one :class:`Exchange`; what it still says after it was cut is not heard.
    """

    def __init__(
        self, job: Job, index: int, question: Question, course: Course, record: StreamRecord,
        report: ReportCut,
    ) -> None:  # fmt: skip
        self.job, self.index, self.question, self.record = job, index, question, record
        self._report = report
        self._interval = 1 / job.pace if job.pace else 0.0
        self._texts: list[str] = []
        self._cuts: list[Cut] = list(course.cuts)
        self._leaves = course.leaves
        self._away = 0.0
        self._last_token = 0.0
        self._connection: Exchange | None = None
        self.cursor = 0
        """The last seq that came; the end's own seq in the end."""
        self._finish = ""
        self._done = False
        self._error: dict[str, Any] | None = None
        self._trouble = ""

    @property
    def text(self) -> str:
        return "".join(self._texts)

    async def run(self) -> StreamRecord:
        record = self.record
        record.connections = 0
        record.sent = self._last_token = time.time()
        try:
            await self._live()
        finally:
            if self._connection is not None:
                self._connection.cut()
        record.ended = time.time()
        if not record.left:
            await self._judge()
        return record

    async def _live(self) -> None:
        raise NotImplementedError

    # --- what comes --------------------------------------------------------------------------------

    def _note(self, seq: int, text: str) -> None:
        """A piece of the answer whose last token is ``seq``."""
        now = time.time()
        record = self.record
        if seq <= self.cursor:
            record.repeated += 1
            return
        if record.first is None:
            record.first = now
        else:
            seconds = now - self._last_token
            # A character made of several tokens can't be shown before the last of them.
            beyond = seconds - self._interval * (seq - self.cursor if len(text) == 1 else 1)
            if beyond > SILENCE_NOTED:
                record.gaps.append(Gap(at=now, seconds=seconds, beyond=beyond))
        self._last_token = now
        self._texts.append(text)
        self.cursor = record.tokens = seq
        if self._leaves is not None and seq >= self._leaves:
            record.left = True
            self._let_go(reset=False)
        elif self._cuts and seq >= self._cuts[0].after:
            self._cut_off()

    def _end(self, seq: int, finish: str) -> None:
        self._done, self._finish = True, finish
        self.cursor = seq
        self.record.tokens = max(seq - 1, self.record.tokens)

    def _cut_off(self) -> None:
        if self._connection is None or not self._cuts:
            return
        cut = self._cuts.pop(0)
        self._away = cut.away
        self.record.cuts += 1
        self._report("reader_cut", self.index, time.time())
        self._let_go(reset=cut.reset)

    def _let_go(self, *, reset: bool) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.cut(reset=reset)

    # --- connections -------------------------------------------------------------------------------

    async def _use(self, connection: Exchange, url: str) -> bool:
        """Connect and read to the connection's end; whether there was a connection at all."""
        self._connection = connection
        try:
            await connection.connect(url)
        except OSError as trouble:
            self._connection = None
            self._trouble = f"cannot connect: {trouble}"
            return False
        self.record.connections += 1
        if self._cuts and self._cuts[0].after <= self.cursor:
            asyncio.get_running_loop().call_later(CUT_BEFORE_HEAD, self._cut_off_if, connection)
        while self._connection is connection and not connection.closed.done():
            limit = connection.last_byte + self.job.silence - asyncio.get_running_loop().time()
            if limit <= 0:
                self._trouble = "silence"
                connection.cut()
            await asyncio.wait([connection.closed], timeout=max(limit, 0.05))
        self._connection = None
        return True

    def _cut_off_if(self, connection: Exchange) -> None:
        if self._connection is connection:
            self._cut_off()

    # --- the end -----------------------------------------------------------------------------------

    async def _judge(self) -> None:
        record = self.record
        if not self._done or self._finish not in FINISHED:
            record.fault = record.fault or self._complaint()
            return
        if self.text == self.question.text:
            record.whole = True
        elif self.job.exact or not await self._is_what_the_log_says():
            record.fault = "wrong bytes"
        else:
            record.whole = record.diverged = True

    def _complaint(self) -> str:
        if self._error is not None:
            return str(self._error.get("code") or self._error.get("message") or "error")
        return self._trouble or f"ended without an end ({self._finish or 'no finish'})"

    async def _is_what_the_log_says(self) -> bool:
        """Whether the gateway has stored the text that the reader has."""
        answer: list[bytes] = []
        headers = {"Authorization": f"Bearer {self.job.key}"}
        for url in self.job.gateways:
            asked = request("GET", url, f"/v1/sessions/{self.record.session}", headers)
            exchange = Exchange(asked, answer.append)
            if await self._use(exchange, url) and exchange.status == 200 and exchange.complete:
                return bool(orjson.loads(b"".join(answer))["answer"]["text"] == self.text)
            answer.clear()
        return False

    # --- OpenAI's chunks ---------------------------------------------------------------------------

    def _take_chunk(self, seq: int, name: bytes, value: bytes) -> None:
        if self._connection is None or name:
            return
        if value == b"[DONE]":
            self._end(seq or self.cursor + 1, self._finish)
            return
        chunk = orjson.loads(value)
        if "error" in chunk:
            self._error = chunk["error"]
            return
        for choice in chunk["choices"]:
            self._finish = choice["finish_reason"] or self._finish
            if content := choice["delta"].get("content"):
                self._note(seq or self.cursor + 1, content)

    def _chat(self, *, stream: bool = True) -> dict[str, Any]:
        return {
            "model": self.job.model, "messages": self.question.messages, "stream": stream,
            "max_tokens": self.question.max_tokens, "temperature": 0,
        }  # fmt: skip


class Plain(Story):
    """An OpenAI client: it asks again before an answer has begun, and never comes back after."""

    async def _live(self) -> None:
        for attempt in range(SDK_RETRIES + 1):
            if attempt:
                await asyncio.sleep(SDK_PAUSE * attempt)
            self._error = None
            url = self.job.gateways[(self.index + attempt) % len(self.job.gateways)]
            headers = {"Authorization": f"Bearer {self.job.key}"}
            asked = request("POST", url, "/v1/chat/completions", headers, self._chat())
            exchange = Exchange(asked, Events(self._take_chunk).feed)
            if not await self._use(exchange, url):
                continue
            self.record.session = exchange.headers.get("x-session-id", self.record.session)
            refusal = exchange.refusal[:200].decode(errors="replace")
            if exchange.status == 0:
                self._trouble = self._trouble or "connection lost before the head"
                continue
            if exchange.status in (408, 409, 429) or exchange.status >= 500:
                self._trouble = f"{exchange.status} {refusal}"
                continue
            if exchange.status != 200:
                self._trouble = f"{exchange.status} {refusal}"
            elif not self._done:
                self._trouble = self._trouble or "connection lost"
            return


class Direct(Story):
    """Streamed by an engine, without a gateway: nodes in turn, and the next one if one refuses."""

    stream = True

    async def _live(self) -> None:
        nodes = self.job.nodes
        for attempt in range(len(nodes)):
            url = nodes[(self.index // len(self.job.modes) + attempt) % len(nodes)]
            events = Events(self._take_chunk)
            body: list[bytes] = []
            take = events.feed if self.stream else body.append
            asked = request("POST", url, "/v1/chat/completions", {}, self._chat(stream=self.stream))
            exchange = Exchange(asked, take)
            if not await self._use(exchange, url):
                continue
            if exchange.status not in (0, 200):
                self._trouble = f"{exchange.status}"
            elif not exchange.complete:
                self._trouble = self._trouble or "connection lost"
            elif not self.stream:
                self._take_whole(b"".join(body))
            break
        if self._done:
            self.record.tokens = self.question.tokens

    def _take_whole(self, body: bytes) -> None:
        choice = orjson.loads(body)["choices"][0]
        self.record.first = time.time()
        self._texts.append(choice["message"]["content"])
        self._end(self.question.tokens + 1, choice["finish_reason"])

    async def _is_what_the_log_says(self) -> bool:
        # Nobody keeps a log here: an engine that ends its answer itself is believed.
        return True


class Unstreamed(Direct):
    """Asked without streaming: there is an answer, or there is none."""

    stream = False
