"""Replies to one POST, whole and broken, however they are cut."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest
from aiohttp import ClientError, ClientPayloadError, ServerDisconnectedError

from streaming.engines import sockets
from streaming.engines.sockets import EngineConnection
from streaming.engines.wire import MOST_HELD, MOST_IN_ADVANCE, Reply, request_head

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TWO = CHUNKED + b"5;x=1\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"


class Transport(asyncio.Transport):
    """Notes whether it was aborted, and whether it may read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False
        self.reads = True

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_reading(self) -> bool:
        return self.reads

    def is_closing(self) -> bool:
        return self.is_aborted


async def reply() -> Reply:
    connection = EngineConnection(asyncio.get_running_loop())
    connection.connection_made(Transport())
    return Reply(connection)


async def body(reply: Reply) -> bytes:
    await reply.head()
    return b"".join([part async for part in reply])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (TWO, b"hello world"),
        (CHUNKED + b"1\r\na\r\n0\r\nX-Trailer: 1\r\n\r\n", b"a"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * MOST_IN_ADVANCE + TWO, b"hello world"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
async def test_a_whole_reply_leaves_its_connection_good(data, text, piece):
    one = await reply()
    for begin in range(0, len(data), piece):
        one.feed(data[begin : begin + piece])
    assert await body(one) == text
    assert (one.is_whole, one.keeps_connection) == (True, True)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    ],
)
async def test_a_connection_that_is_to_be_closed_is_not_kept(data, text):
    one = await reply()
    one.feed(data)
    one.lost(None)
    assert await body(one) == text
    assert not one.keeps_connection


@pytest.mark.parametrize("end", range(len(TWO)))
async def test_an_end_in_the_middle_fails(end):
    one = await reply()
    if end:
        one.feed(TWO[:end])
    one.lost(None)
    kind = ClientPayloadError if end >= len(CHUNKED) else ServerDisconnectedError
    with pytest.raises(kind):
        await body(one)
    assert not one.keeps_connection


async def test_what_came_before_a_reset_is_read_first():
    one = await reply()
    one.feed(CHUNKED + b"5\r\nhello\r\n")
    one.lost(ConnectionResetError(104, "reset"))
    await one.head()
    assert await anext(one) == b"hello"
    with pytest.raises(ConnectionResetError):
        await anext(one)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 fine\r\n\r\n",
        CHUNKED + b"-5\r\n",
        CHUNKED + b"five\r\n",
        CHUNKED + b"1" * 5000,
        CHUNKED + b"0\r\n" + b"x" * 5000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
        TWO + b"more",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
async def test_what_is_not_http_ends_the_connection(data):
    one = await reply()
    one.feed(data)
    assert one.connection.transport.is_aborted
    assert not one.keeps_connection
    with pytest.raises(ClientError):
        await body(one)


async def test_more_than_the_reply_spoils_its_connection():
    one = await reply()
    one.feed(TWO)
    one.feed(b"HTTP/1.1 200 OK\r\n")
    assert not one.keeps_connection


async def test_a_slow_reader_holds_up_the_connection():
    one = await reply()
    part = b"%x\r\n%b\r\n" % (MOST_HELD + 1, b"x" * (MOST_HELD + 1))
    one.feed(CHUNKED + part)
    assert not one.connection.transport.reads
    assert len(await anext(one)) == MOST_HELD + 1
    assert one.connection.transport.reads


@pytest.mark.parametrize("piece", [1, 700, 5000])
async def test_a_trailer_without_an_end_ends_the_connection(piece):
    one = await reply()
    one.feed(CHUNKED + b"0\r\n")
    for _ in range(5000 // piece):
        one.feed(b"x" * piece)
    assert one.connection.transport.is_aborted


async def test_a_connection_that_reads_no_further_is_not_kept():
    one = await reply()
    one.feed(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (MOST_HELD + 1, b"x" * (MOST_HELD + 1)))
    assert (one.is_whole, one.keeps_connection) == (True, False)
    await anext(one)
    assert one.keeps_connection


async def test_a_connection_is_not_cut_for_a_silence_of_our_own(monkeypatch):
    silent = {"last_data_recv": 40_000, "last_data_sent": 40_000}
    monkeypatch.setattr(sockets, "tcp_facts", lambda sock: silent)
    one, watch = await reply(), sockets.Watch()
    watch.begin(one.connection)
    watch.limit = 30.0
    one.feed(CHUNKED + b"%x\r\n%b\r\n" % (MOST_HELD + 1, b"x" * (MOST_HELD + 1)))
    watch.check()
    assert (watch.was_cut, one.connection.transport.is_aborted) == (False, False)
    await anext(one)
    watch.check()
    assert (watch.was_cut, one.connection.transport.is_aborted) == (True, True)


async def test_patience_ends():
    connection = EngineConnection(asyncio.get_running_loop())
    with pytest.raises(TimeoutError):
        await Reply(connection, patience=0.01).head()


def test_no_header_may_hold_another():
    with pytest.raises(ValueError, match="line break"):
        request_head("/", "engine", {"x-request-id": "a\r\nx-other: b"}, 0)
    head = request_head("/v1/x", "engine:8000", {"accept": "*/*"}, 7)
    assert (
        head
        == b"POST /v1/x HTTP/1.1\r\nhost: engine:8000\r\ncontent-length: 7\r\naccept: */*\r\n\r\n"
    )


async def test_poured_is_what_comes_as_it_comes():
    one = await reply()
    one.feed(CHUNKED + b"2\r\nab\r\n")
    await one.head()
    seen: list[bytes] = []
    name: ContextVar[str] = ContextVar("name")

    def take(data: bytes) -> bool:
        seen.append(data)
        assert name.get() == "ours"  # wherever it is called from
        return True

    async def pour() -> bool:
        name.set("ours")
        return await one.pour(take)

    pouring = asyncio.create_task(pour())
    await asyncio.sleep(0)
    assert seen == [b"ab"]
    one.feed(b"1\r\nc")
    one.feed(b"\r\n1\r\nd\r\n1")  # and the beginning of a size
    assert seen == [b"ab", b"c", b"d"]
    await asyncio.sleep(0)
    assert not pouring.done()  # nobody was woken for what has been taken
    one.feed(b"\r\ne\r\n1\r\nf\r\n")
    assert seen[-1] == b"ef"
    pouring.cancel()
    await asyncio.gather(pouring, return_exceptions=True)
    one.feed(b"1\r\ng\r\n0\r\n\r\n")
    assert seen[-1] == b"ef"  # whoever has left takes nothing more
    assert await pour() is False
    assert seen[-1] == b"g"


async def test_whoever_wants_no_more_for_now_finds_it_later():
    one = await reply()
    one.feed(CHUNKED)
    await one.head()
    seen: list[bytes] = []
    pouring = asyncio.create_task(one.pour(lambda data: bool(seen.append(data))))
    await asyncio.sleep(0)
    one.feed(b"1\r\na\r\n")
    one.feed(b"%x\r\n%b\r\n" % (MOST_HELD + 1, b"b" * (MOST_HELD + 1)))
    assert seen == [b"a"]
    assert one.connection.transport.is_reading() is False
    assert await pouring is True
    assert await one.pour(lambda data: bool(seen.append(data))) is True
    assert len(seen[1]) == MOST_HELD + 1
    assert one.connection.transport.is_reading() is True


async def test_what_breaks_the_connection_is_raised_behind_what_had_come():
    one = await reply()
    one.feed(CHUNKED)
    await one.head()
    seen: list[bytes] = []
    pouring = asyncio.create_task(one.pour(lambda data: seen.append(data) is None))
    await asyncio.sleep(0)
    one.feed(b"1\r\na\r\n")
    one.lost(ConnectionResetError())
    assert seen == [b"a"]
    with pytest.raises(ConnectionResetError):
        await pouring
