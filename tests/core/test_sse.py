"""Server-sent events: however the bytes are cut, the events are the same."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.core.sse import EventTooLong, SSEParser

LINES = st.lists(
    st.sampled_from(
        [b"data: one", b"data:two", b"data: ", b"data:", b": comment", b"id: 7", b"event: x",
         b"retry: 1", b"data: caf\xc3\xa9 \xf0\x9f\x8c\x99", b"nonsense", b"", b""]
    ),
    max_size=24,
)  # fmt: skip


def events_of(lines: list[bytes]) -> list[bytes]:
    """The reference: line by line, as the standard says."""
    events: list[bytes] = []
    data: list[bytes] = []
    for line in lines:
        if line.startswith(b"data:"):
            value = line[5:]
            data.append(value[1:] if value.startswith(b" ") else value)
        elif not line:
            if data:
                events.append(b"\n".join(data))
            data = []
    return events


def in_chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(LINES, st.sampled_from([b"\n", b"\r\n"]), st.lists(st.integers(0, 1000), max_size=20))
def test_any_chunking_gives_the_same_events(lines, end, cuts):
    data = b"".join(line + end for line in lines)
    parser = SSEParser()
    found = [event for chunk in in_chunks(data, cuts) for event in parser.feed(chunk)]
    assert found == events_of(lines)


@given(LINES, st.lists(st.integers(0, 1000), max_size=20))
def test_bare_carriage_returns_end_lines_too(lines, cuts):
    # The last of them may be the first half of CRLF until another byte has come.
    data = b"".join(line + b"\r" for line in [*lines, b"", b": the next byte"])
    parser = SSEParser()
    found = [event for chunk in in_chunks(data, cuts) for event in parser.feed(chunk)]
    assert found == events_of([*lines, b""])


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=8))
def test_any_bytes_are_survived(chunks):
    parser = SSEParser()
    for chunk in chunks:
        parser.feed(chunk)


def test_byte_by_byte():
    data = b": hello\r\n\r\ndata: a\r\ndata: b\r\n\r\nid: 3\ndata: c\n\n"
    parser = SSEParser()
    assert [e for byte in data for e in parser.feed(bytes([byte]))] == [b"a\nb", b"c"]
    assert not parser.pending


def test_half_an_event_is_never_given():
    parser = SSEParser()
    assert parser.feed(b'data: {"whole":1}\n\ndata: {"ha') == [b'{"whole":1}']
    assert parser.pending
    assert parser.feed(b'lf":1}\n') == []


def test_an_event_without_an_end_is_refused():
    parser = SSEParser(limit=100)
    for _ in range(6):
        assert parser.feed(b"data: 0123456789") == []
    with pytest.raises(EventTooLong):
        parser.feed(b"data: 0123456789")
