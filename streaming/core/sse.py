"""Server-sent events, read and written (HTML Living Standard, section 9.2)."""

from __future__ import annotations


class EventTooLong(ValueError):
    """An event grew past the limit without ending."""


class SSEParser:
    """Takes bytes as they come, gives the ``data`` of each complete event.

    Comments, ``id``, ``event`` and ``retry`` are passed over: engines use none of them. What is
    left when the stream ends is half an event and must be thrown away, never parsed.
    """

    __slots__ = ("_buffer", "_limit")

    def __init__(self, limit: int = 4 * 1024 * 1024) -> None:
        self._buffer = b""
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now. Raises ``EventTooLong``."""
        buffer = self._buffer + data if self._buffer else data
        end = buffer.rfind(b"\n\n")
        if end > 0 and buffer.startswith(b"data: ") and b"\r" not in buffer:
            # What engines send nearly always: events of one line each, the last maybe half there.
            payloads = buffer[6:end].split(b"\n\ndata: ")
            if buffer.count(b"\n", 0, end) == 2 * len(payloads) - 2:
                self._buffer = buffer[end + 2 :]
                self._check_length()
                return payloads
        if b"\r" in buffer:
            # A CR at the very end may be the first half of CRLF: it stays for the next call.
            tail = b"\r" if buffer.endswith(b"\r") else b""
            body = buffer[: len(buffer) - len(tail)]
            buffer = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + tail
        *events, self._buffer = buffer.split(b"\n\n")
        self._check_length()
        return [payload for event in events if (payload := _data_of(event)) is not None]

    def _check_length(self) -> None:
        if len(self._buffer) > self._limit:
            raise EventTooLong(f"an event is longer than {self._limit} bytes")

    @property
    def pending(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._buffer.strip())


def _data_of(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [
        line[6:] if line.startswith(b"data: ") else line[5:]
        for line in event.split(b"\n")
        if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None
