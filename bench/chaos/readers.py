"""The readers: one cheap process of its own, for as many streams as the machine lets through.

``python -m bench.chaos.readers`` takes a :class:`Job` as one line of JSON on stdin. It appends a
record for each stream that ends, says on stdout ten times a second how many there are, and names
each connection that it (or the proxy) has cut. A line ``stop`` on stdin: no new streams; ``end``:
those under way are left alone, without records.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path

from bench.chaos import records
from bench.chaos.job import Job
from bench.chaos.records import FaultKind, Mode, ReaderKind, StreamRecord, Transport
from bench.chaos.returning import EventReader, SocketReader
from bench.chaos.schedule import Course, course
from bench.chaos.stories import Direct, Plain, Story, Unstreamed

TOLD_EVERY = 0.1


class Readers:
    """Starts streams on time and keeps the books of those that end."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._path = Path(job.directory) / "streams.jsonl"
        self._running: set[asyncio.Task[StreamRecord]] = set()
        self._ended: list[StreamRecord] = []
        self._started = 0
        self._finished = 0
        self._no_more = asyncio.Event()
        self._at_once = asyncio.Event()

    async def run(self) -> None:
        telling = asyncio.create_task(self._tell())
        listening = asyncio.create_task(self._listen())
        await self._start_all()
        at_once = asyncio.create_task(self._at_once.wait())
        while self._running and not self._at_once.is_set():
            await asyncio.wait([*self._running, at_once], return_when=asyncio.FIRST_COMPLETED)
        for task in [*self._running, telling, listening, at_once]:
            task.cancel()
        await asyncio.gather(*self._running, telling, listening, at_once, return_exceptions=True)
        self._write()

    async def _start_all(self) -> None:
        loop = asyncio.get_running_loop()
        first = loop.time()
        for index in range(self.job.streams):
            due = first + index / self.job.rate
            if self._no_more.is_set() or (self.job.seconds and due - first >= self.job.seconds):
                return
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            task = asyncio.create_task(self._story(index).run())
            self._started += 1
            self._running.add(task)
            task.add_done_callback(self._take)

    def _story(self, index: int) -> Story:
        """Mode, reader and course of a stream: the same for the same index and seed."""
        job = self.job
        question = job.questions[index % len(job.questions)]
        mode: Mode = job.modes[index % len(job.modes)]
        turn = index // len(job.modes)
        reader: ReaderKind = "plain"
        transport: Transport = "none" if mode == "unstreamed" else "sse"
        if mode == "unbroken":
            reader, transport = job.readers[turn % len(job.readers)]
        record = StreamRecord(
            index=index, mode=mode, reader=reader, transport=transport, sent=0.0,
            asked=question.tokens,
        )  # fmt: skip
        kind: type[Story] = Plain
        way = Course()
        if mode == "unbroken" and reader != "plain":
            kind = SocketReader if transport == "websocket" else EventReader
            way = course(job.seed, index, question.tokens, cut=job.cut, leave=job.leave)
        elif mode == "unbroken":
            way = course(job.seed, index, question.tokens, cut=0.0, leave=job.leave)
        else:
            kind = Direct if mode == "unprotected" else Unstreamed
        return kind(job, index, question, way, record, self._cut)

    def _take(self, task: asyncio.Task[StreamRecord]) -> None:
        self._running.discard(task)
        self._finished += 1
        if not task.cancelled():
            self._ended.append(task.result())

    def _cut(self, kind: FaultKind, index: int, at: float) -> None:
        print(json.dumps({"cut": kind, "index": index, "at": at}), flush=True)

    async def _tell(self) -> None:
        while True:
            told = {"active": len(self._running), "started": self._started, "ended": self._finished}
            print(json.dumps(told), flush=True)
            self._write()
            await asyncio.sleep(TOLD_EVERY)

    def _write(self) -> None:
        if self._ended:
            ended, self._ended = self._ended, []
            records.append(self._path, ended)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self._no_more.set()
            if line == b"end\n":
                self._at_once.set()
        self._no_more.set()
        self._at_once.set()


async def _run(job: Job) -> None:
    await Readers(job).run()


def main() -> None:
    job = Job.read(json.loads(sys.stdin.readline()))
    # Millions of small objects live for seconds: looking at all of them often costs more than they do.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    asyncio.run(_run(job))


if __name__ == "__main__":
    main()
