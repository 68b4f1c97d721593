"""Reading the event stream of one attempt, whatever the dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from streaming.core.chunks import TokenChunk
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine
from streaming.core.sse import EventTooLong, SSEParser
from streaming.engines.http import (
    EngineClient,
    expected_shape,
    parsed,
    raise_for_error,
    stream_post,
    translated_errors,
)


class EventReader(Protocol):
    """A dialect's way of turning the events of one stream into chunks."""

    finished: bool
    """Whether an event has said that the answer ends, and how."""

    async def read(self, payloads: list[bytes], chunks: list[TokenChunk]) -> None:
        """Add the chunks of some events to ``chunks``, up to the one that fails."""


async def chunks_of(
    client: EngineClient,
    url: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    reader: EventReader,
) -> AsyncGenerator[list[TokenChunk]]:
    """See ``Dialect.generate``: one list of chunks for what each network read brought."""
    parser = SSEParser()
    async with stream_post(client, url, body, headers) as stream:
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
