"""Reading the event stream of one attempt, whatever the dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol, Self, TypeVar
from uuid import uuid4

import orjson

from streaming.conf import conf
from streaming.core.chunks import UNKNOWN_ID, Sampling, TokenChunk
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.core.sse import EventTooLong, SSEParser
from streaming.engines.access import Access, limited
from streaming.engines.base import Dialect, Generation, Take
from streaming.engines.http import (
    OTHER_SHAPES,
    TRANSPORT_ERRORS,
    Stream,
    other_shape,
    parsed,
    raise_for_error,
    transport_failure,
)

Rest = Callable[[], Awaitable[None]]
Found = TypeVar("Found")


class EventReader(Protocol):
    """A dialect's way of turning the events of one stream into chunks."""

    finished: bool
    """Whether an event has said that the answer ends, and how."""

    def read(self, payloads: list[bytes], chunks: list[TokenChunk]) -> Rest | None:
        """Add the chunks of some events to ``chunks``, up to the one that fails.

        Where the engine has to be asked something first, what is left to do is returned.
        """


class Chunks:
    """See ``Dialect.generate``: one list of chunks for what each network read brought.

    No generator: those that a failure has to leave one after the other, with all that they hold
    open, cost more than what is done in them, and a node that dies ends hundreds at once.
    """

    def __init__(
        self,
        access: Access,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        reader: EventReader,
        generation: Generation,
    ) -> None:
        if generation.traceparent:
            headers = {**headers, "traceparent": generation.traceparent}
        self._request: tuple[str, Mapping[str, Any], Mapping[str, str]] | None = (
            path,
            body,
            headers,
        )
        """None once it has been sent: nobody needs the prompt in this shape any more."""
        self._access = access
        self._reader = reader
        self._watch = generation.watch
        self._parser = SSEParser()
        self._reply: Stream | None = None
        self._has_begun = False
        self._is_over = False
        self._unfinished: tuple[list[TokenChunk], Rest] | None = None
        """Of a read: what it has brought so far, and what has to be asked for the rest."""
        self._failure: AttemptFailed | RejectedByEngine | None = None
        """What came together with the chunks that were given last."""

    def __repr__(self) -> str:
        return f"<Chunks of {self._reply!r}{', over' if self._is_over else ''}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[TokenChunk]:
        if not self._is_over:
            chunks = await self._explaining(self._read())
            if chunks is not None:
                return chunks
        raise StopAsyncIteration

    async def pour(self, take: Take) -> bool:
        """See ``TokenStream.pour``."""
        return not self._is_over and await self._explaining(self._pour(take))

    async def _explaining(self, reading: Coroutine[Any, Any, Found]) -> Found:
        """Read on; whatever goes wrong ends the request, and is told with its evidence."""
        try:
            return await reading
        except TRANSPORT_ERRORS as exc:
            await self._end(exc)
            raise self._explained(transport_failure(exc)) from exc
        except AttemptFailed as failure:
            await self._end(failure)
            explained = self._explained(failure)
            if explained is failure:
                raise
            raise explained from failure
        except BaseException as exc:
            await self._end(exc)
            raise

    async def aclose(self) -> None:
        """Close the connection, which aborts the request at the engine; nothing after the end."""
        await self._end(GeneratorExit())

    async def _ask(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self._request = None
        access = self._access
        self._reply = reply = await access.client.post(
            access.base_url + path,
            orjson.dumps(body),
            {**access.headers(), **headers},
            self._watch,
        )
        if reply.status != 200:
            access.refuse(reply.status, await limited(aiter(reply)), reply.headers)

    async def _opened(self) -> Stream:
        """The reply; asked for where it has not been. Raises what came with the chunks before."""
        if self._failure is not None:
            raise self._failure
        if self._request is not None:
            await self._ask(*self._request)
        assert self._reply is not None
        return self._reply

    async def _read(self) -> list[TokenChunk] | None:
        """Chunks, as soon as there are some; None at the end of a stream that has finished."""
        async for data in await self._opened():
            chunks: list[TokenChunk] = []
            rest = self._parse(data, chunks)
            if rest is not None:
                await self._finish(rest)
            if chunks:
                self._note_begun()
                return chunks
            if self._failure is not None:
                raise self._failure
        await self._end_well()
        return None

    async def _pour(self, take: Take) -> bool:
        reply = await self._opened()
        if self._unfinished is not None:
            (chunks, rest), self._unfinished = self._unfinished, None
            await self._finish(rest)
            if not self._give(chunks, take):
                return True
        if await reply.pour(partial(self._received, take)):
            return True
        await self._end_well()
        return False

    def _received(self, take: Take, data: bytes) -> bool:
        """A read of ``reply.pour``; False where its task has to go on."""
        chunks: list[TokenChunk] = []
        rest = self._parse(data, chunks)
        if rest is not None:
            self._unfinished = chunks, rest
            return False
        return self._give(chunks, take)

    def _give(self, chunks: list[TokenChunk], take: Take) -> bool:
        if not chunks:
            return self._failure is None
        self._note_begun()
        return take(chunks) and self._failure is None

    def _parse(self, data: bytes, chunks: list[TokenChunk]) -> Rest | None:
        """Add what a read has brought to ``chunks``; see ``EventReader.read``."""
        try:
            return self._reader.read(self._parser.feed(data), chunks)
        except EventTooLong as exc:
            self._failure = AttemptFailed(Cause.MALFORMED, str(exc))
        except OTHER_SHAPES as exc:
            self._failure = other_shape(exc)
        except (AttemptFailed, RejectedByEngine) as exc:
            self._failure = exc
        return None

    async def _finish(self, rest: Rest) -> None:
        """What ``_parse`` has left to do."""
        try:
            await rest()
        except OTHER_SHAPES as exc:
            self._failure = other_shape(exc)
        except (AttemptFailed, RejectedByEngine) as exc:
            self._failure = exc

    def _note_begun(self) -> None:
        """From the first chunks on there is less patience."""
        if not self._has_begun:
            self._has_begun = True
            self._watch.limit = conf().engine_silence

    async def _end_well(self) -> None:
        """All has come. Raises ``AttemptFailed`` where that is not the end of the answer."""
        if not self._reader.finished:
            raise AttemptFailed(Cause.CLOSED, "the stream ended without saying how the answer ends")
        await self._end(None)

    async def _end(self, error: BaseException | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._access.client.guard.end(self._watch, error)
            if self._reply is not None:
                await self._reply.aclose()

    def _explained(self, failure: AttemptFailed) -> AttemptFailed:
        """With the evidence of its connection."""
        watch = self._watch
        failure.evidence = {**watch.facts(), **failure.evidence}
        if not watch.was_cut:
            return failure
        silence = f"not a byte for {watch.limit:g} s: the connection is cut"
        return AttemptFailed(Cause.STALLED, silence, evidence=failure.evidence)


def events_of(payloads: list[bytes]) -> Iterator[dict[str, Any]]:
    """The events of one read, in turn. Raises what an error object means, when its turn comes.

    ``[DONE]`` is left out: it proves nothing, as it follows errors and aborts too.
    """
    for event in _values(payloads):
        if not isinstance(event, dict):
            raise AttemptFailed(Cause.MALFORMED, f"not an event: {event!r:.80}")
        if "error" in event:
            raise_for_error(event["error"])
        yield event


DONE = b"[DONE]"


def _values(payloads: list[bytes]) -> Iterable[Any]:
    if len(payloads) > 1:
        # Together they take half the time. What cannot be read so is read one by one, to the one
        # that is wrong.
        try:
            values: list[Any] = orjson.loads(b"[%b]" % b",".join(payloads))
        except orjson.JSONDecodeError:
            pass
        else:
            if len(values) == len(payloads):
                return values
    elif payloads and payloads[0] != DONE:
        return [parsed(payloads[0])]
    return (parsed(payload) for payload in payloads if payload != DONE)


# An ordinary token in every vocabulary: the first ones are often control tokens.
PLAIN_TOKEN = 100


async def one_token(dialect: Dialect, model: str, timeout: float, *, ids: bool) -> TokenChunk:
    """See ``Dialect.pulse``; the token that came. ``ids``: prompt it with an id, not with text."""
    generation = Generation(
        model=model,
        prompt=[PLAIN_TOKEN] if ids else "1",
        max_tokens=1,
        min_tokens=0,
        sampling=Sampling(0),
        request_id=f"pulse-{uuid4().hex}",
        prompt_cache=False,
    )
    try:
        async with aclosing(dialect.generate(generation)) as stream, asyncio.timeout(timeout):
            tokens = [chunk async for chunks in stream for chunk in chunks]
    except TimeoutError:
        raise AttemptFailed(Cause.STALLED, f"not one token within {timeout:g} s") from None
    if not tokens:
        raise AttemptFailed(Cause.CLOSED, "an answer without a token")
    return tokens[0]


async def takes_token_ids(dialect: Dialect, model: str, timeout: float) -> bool:
    """Whether it answers a prompt of ids, and tells the id of its own token.

    One that is too busy to say so now is believed to: every attempt checks what is echoed.
    """
    try:
        token = await one_token(dialect, model, timeout, ids=True)
    except RejectedByEngine:
        return False
    except AttemptFailed as exc:
        return exc.cause is not Cause.MISMATCH
    return UNKNOWN_ID not in token.token_ids
