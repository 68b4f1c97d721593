"""Readers who come back with their cursor, to whichever gateway: by events or by a WebSocket."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import orjson

from bench.chaos.stories import LONGEST_PAUSE, Story
from bench.chaos.wire import Events, Exchange, WebSocket, request

ACKS = 4
"""How often an answer is acknowledged while it runs."""
FATAL = frozenset({400, 401, 403, 404, 409, 410, 413, 422})


class Returning(Story):
    """Creates its session with an ``Idempotency-Key``, so that it is asked for once, and reads on."""

    _session = ""
    _pause = 0.0
    _acknowledging: asyncio.Task[None] | None = None

    async def _live(self) -> None:
        chance = random.Random(f"{self.job.seed} way {self.index}")
        ways = self.job.gateways
        self._proxied = bool(self.job.proxies) and chance.random() < self.job.proxied
        if self._proxied:
            ways = self.job.proxies
        turn = self.index
        patience = self.job.patience
        while not self._done and not self.record.left:
            if time.time() - self._last_token > patience:
                self._trouble = f"nothing new for {patience:.0f} s: {self._trouble}"
                break
            began = self.cursor
            self._trouble = ""
            went_well = await self._turn(ways[turn % len(ways)])
            if self._error is not None:
                break
            turn += 1
            if self._done or self.record.left:
                break
            if self._away:
                await asyncio.sleep(self._away)
                self._away, self._last_token = 0.0, time.time()
            if went_well and self.cursor > began:
                self._pause = 0.0
            elif self._pause:
                await asyncio.sleep(self._pause)
            self._pause = min(LONGEST_PAUSE, max(0.05, self._pause * 2))
        if self._acknowledging is not None:
            self._acknowledging.cancel()
        if self.record.reader == "acking" and self._session and self.cursor:
            await self._acknowledge_for_certain()

    async def _turn(self, url: str) -> bool:
        """One connection; whether it did something."""
        if not self._session:
            return await self._create(url)
        return await self._read(url)

    async def _create(self, url: str) -> bool:
        answer: list[bytes] = []
        headers = self._headers() | {"Idempotency-Key": f"chaos-{self.job.seed}-{self.index}"}
        exchange = Exchange(
            request("POST", url, "/v1/sessions", headers, self._chat()), answer.append
        )
        if not await self._reach(exchange, url):
            return False
        self.record.connections -= 1  # nothing is read on this one
        body = b"".join(answer)
        if exchange.status == 201 and exchange.complete:
            self._session = self.record.session = orjson.loads(body)["id"]
            return True
        self._refused(exchange)
        return False

    async def _read(self, url: str) -> bool:
        raise NotImplementedError

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.job.key}"}

    async def _reach(self, exchange: Exchange, url: str) -> bool:
        """``_use``, and notice what the proxy does."""
        cuts = self.record.cuts
        there = await self._use(exchange, url)
        age = asyncio.get_running_loop().time() - exchange.began
        if (
            there and self._proxied and not exchange.complete and not self._done
            and self.record.cuts == cuts and not self.record.left
            and age >= self.job.proxy_seconds - 0.05
        ):  # fmt: skip
            self.record.cuts += 1
            self._report("proxy_cut", self.index, time.time())
        return there

    def _refused(self, exchange: Exchange) -> None:
        self._trouble = f"{exchange.status} {exchange.refusal[:200].decode(errors='replace')}"
        if exchange.status in FATAL:
            self._error = {"code": self._trouble}

    def _take_event(self, seq: int, name: bytes, data: dict[str, Any]) -> None:
        if name == b"token":
            self._note(data["seq"], data["text"])
            self._perhaps_acknowledge()
        elif name == b"done":
            self._end(data["seq"], data["finish_reason"] or data["state"])
        elif name == b"error":
            self._failed(data)
        elif name == b"interrupted":
            self._trouble = f"interrupted: {data['error']['code']}"

    def _failed(self, data: dict[str, Any]) -> None:
        """One with a seq is the log's end: whoever comes back is told it again."""
        error = data["error"]
        if error.get("resumable") and not data.get("seq"):
            self._trouble = str(error.get("code"))
        else:
            self._error = error

    # --- acknowledgements --------------------------------------------------------------------------

    def _perhaps_acknowledge(self) -> None:
        if self.record.reader != "acking":
            return
        step = max(8, self.question.tokens // ACKS)
        if self.cursor - self._asked_to_ack >= step:
            self._asked_to_ack = self.cursor
            self._send_ack()

    _asked_to_ack = 0

    def _send_ack(self) -> None:
        if self._acknowledging is None or self._acknowledging.done():
            self._acknowledging = asyncio.create_task(self._acknowledge(self.cursor, self.index))

    async def _acknowledge(self, seq: int, turn: int) -> None:
        """By a request of its own, at any gateway."""
        url = self.job.gateways[turn % len(self.job.gateways)]
        path = f"/v1/sessions/{self._session}/ack"
        answer: list[bytes] = []
        exchange = Exchange(
            request("POST", url, path, self._headers(), {"seq": seq}), answer.append
        )
        try:
            await exchange.connect(url)
        except OSError:
            return
        await asyncio.wait([exchange.closed], timeout=self.job.silence)
        if exchange.status == 200 and exchange.complete:
            # What counts may come short of it for a moment: another process has sent it.
            counts = min(seq, orjson.loads(b"".join(answer))["delivered_seq"], self.record.tokens)
            self.record.acked = max(self.record.acked, counts)
        elif exchange.status == 0:
            exchange.cut()

    async def _acknowledge_for_certain(self) -> None:
        """Until all of it counts, as a client does that keeps what it owes on disk."""
        deadline = time.time() + self.job.patience
        turn = self.index
        while self.record.acked < self.record.tokens and time.time() < deadline:
            await self._acknowledge(self.cursor, turn)
            turn += 1
            if self.record.acked < self.record.tokens:
                await asyncio.sleep(0.2)


class EventReader(Returning):
    """Server-sent events with ``Last-Event-ID``."""

    async def _read(self, url: str) -> bool:
        headers = self._headers() | {"Last-Event-ID": str(self.cursor)}
        path = f"/v1/sessions/{self._session}/events"
        exchange = Exchange(request("GET", url, path, headers), Events(self._take_raw).feed)
        if not await self._reach(exchange, url):
            return False
        if exchange.status not in (0, 200):
            self._refused(exchange)
        return exchange.status == 200

    def _take_raw(self, seq: int, name: bytes, value: bytes) -> None:
        if self._connection is not None:
            self._take_event(seq, name, orjson.loads(value))


class SocketReader(Returning):
    """A WebSocket on which the session is resumed; acks are messages there."""

    async def _read(self, url: str) -> bool:
        socket = WebSocket(url, "/ws/chat/", self._headers(), self._take_message)
        self._socket = socket
        socket.send({"type": "resume", "session": self._session, "seq": self.cursor})
        if not await self._reach(socket, url):
            return False
        if socket.status not in (0, 101):
            self._refused(socket)
        return socket.status == 101

    def _take_message(self, message: bytes) -> None:
        data = orjson.loads(message)
        kind = data["type"]
        if kind == "complete":
            self._end(data["seq"], self._finish)
        else:
            self._take_event(data.get("seq", 0), kind.encode(), data)
        if (
            self._done or self._error is not None or self._trouble
        ) and self._connection is not None:
            self._let_go(reset=False)

    def _send_ack(self) -> None:
        self._socket.send({"type": "ack", "session": self._session, "seq": self.cursor})
