"""Reading the event stream of one attempt, whatever the dialect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Protocol
from uuid import uuid4

from streaming.conf import conf
from streaming.core.chunks import UNKNOWN_ID, Sampling, TokenChunk
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.core.sse import EventTooLong, SSEParser
from streaming.engines.access import Access, stream_post
from streaming.engines.base import Dialect, Generation
from streaming.engines.http import expected_shape, parsed, raise_for_error, translated_errors


class EventReader(Protocol):
    """A dialect's way of turning the events of one stream into chunks."""

    finished: bool
    """Whether an event has said that the answer ends, and how."""

    async def read(self, payloads: list[bytes], chunks: list[TokenChunk]) -> None:
        """Add the chunks of some events to ``chunks``, up to the one that fails."""


async def chunks_of(
    access: Access,
    path: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    reader: EventReader,
    generation: Generation,
) -> AsyncGenerator[list[TokenChunk]]:
    """See ``Dialect.generate``: one list of chunks for what each network read brought."""
    parser = SSEParser()
    begun = False
    watch = generation.watch
    if generation.traceparent:
        headers = {**headers, "traceparent": generation.traceparent}
    async with stream_post(access, path, body, headers, watch) as stream:
        with translated_errors():
            async for data in stream:
                try:
                    payloads = parser.feed(data)
                except EventTooLong as exc:
                    raise AttemptFailed(Cause.MALFORMED, str(exc)) from exc
                chunks: list[TokenChunk] = []
                try:
                    with expected_shape():
                        await reader.read(payloads, chunks)
                except (AttemptFailed, RejectedByEngine):
                    # Tokens that came together with an error have come all the same.
                    if chunks:
                        yield chunks
                    raise
                if chunks:
                    if not begun:
                        begun = True
                        watch.limit = conf().engine_silence
                    yield chunks
        if not reader.finished:
            raise AttemptFailed(Cause.CLOSED, "the stream ended without saying how the answer ends")


def event_of(payload: bytes) -> dict[str, Any]:
    """One event. Raises what an error object means."""
    event = parsed(payload)
    if not isinstance(event, dict):
        raise AttemptFailed(Cause.MALFORMED, f"not an event: {payload[:80]!r}")
    if "error" in event:
        raise_for_error(event["error"])
    return event


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
