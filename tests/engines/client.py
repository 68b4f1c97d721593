"""Dialects on recorded bytes: a transport that answers with them, cut as the test likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import httpx
import orjson

from streaming.core.chunks import Sampling, TokenChunk
from streaming.core.nodes import NodeOptions
from streaming.engines.base import Dialect, Generation
from streaming.engines.http import EngineClient
from streaming.engines.registry import dialect_for
from tests.simulator.client import prompt_of

Answer = tuple[int, bytes]


class _Bytes(httpx.AsyncByteStream):
    def __init__(self, pieces: Sequence[bytes], error: Exception | None) -> None:
        self._pieces = pieces
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._error is not None:
            raise self._error


class Recording:
    """An engine that says what it is told to; remembers what it was asked."""

    def __init__(
        self,
        name: str,
        data: bytes = b"",
        *,
        status: int = 200,
        headers: dict[str, str] | None = None,
        piece: int = 0,
        error: Exception | None = None,
        calls: Callable[[str, Any], Any] | None = None,
        options: NodeOptions | None = None,
    ) -> None:
        """``piece``: bytes a read brings (0: all); ``calls``: the JSON of other paths."""
        self.asked: list[tuple[str, Any]] = []
        pieces = [data[i : i + piece] for i in range(0, len(data), piece)] if piece else [data]

        async def answer(request: httpx.Request) -> httpx.Response:
            body = orjson.loads(request.content) if request.content else None
            path = request.url.path
            self.asked.append((path, body))
            if calls is not None and "completion" not in path:
                return httpx.Response(200, json=calls(path, body))
            return httpx.Response(status, headers=headers, stream=_Bytes(pieces, error))

        client = EngineClient(httpx.MockTransport(answer))
        self.dialect: Dialect = dialect_for(name, client, "http://engine", options or NodeOptions())

    async def chunks(self, generation: Generation) -> list[TokenChunk]:
        return [c async for chunks in self.dialect.generate(generation) for c in chunks]

    async def pour(self, generation: Generation, found: list[TokenChunk], most: int = 1000) -> None:
        """``chunks`` into ``found``, by ``pour``, which is told to stop after each ``most`` reads."""
        reads = 0

        def take(chunks: list[TokenChunk]) -> bool:
            nonlocal reads
            reads += 1
            found.extend(chunks)
            return reads % most != 0

        stream = self.dialect.generate(generation)
        while await stream.pour(take):
            pass


def generation(prompt: Sequence[int] | str = (1, 2), **fields: Any) -> Generation:
    return Generation(
        **{
            "model": "smollm2",
            "prompt": prompt,
            "max_tokens": 6,
            "min_tokens": 0,
            "sampling": Sampling(temperature=0),
            "request_id": "s-1",
            **fields,
        }
    )


LONG = prompt_of("[[tokens=900]]")


class Asking:
    """An attempt that goes on in the background until it is left."""

    def __init__(self, dialect: Dialect, request_id: str = "s-1") -> None:
        self._stream = dialect.generate(
            generation(LONG, model="sim-model", max_tokens=900, request_id=request_id)
        )
        self._task = asyncio.create_task(self._read())
        self.begun = asyncio.Event()

    async def _read(self) -> None:
        async with aclosing(self._stream) as stream:
            async for _ in stream:
                self.begun.set()

    async def __aenter__(self) -> asyncio.Task[None]:
        async with asyncio.timeout(5):
            await self.begun.wait()
        return self._task

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
