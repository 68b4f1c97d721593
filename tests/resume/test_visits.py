"""What the time line knows of readers, and sessions that staff have continued."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

from tests.durability.reader import until
from tests.resume.events import Client, Reading, question, urls
from tests.stack import Stack


def visits(stack: Stack, session_id: str) -> list[tuple[str, int, dict[str, Any]]]:
    return stack.sql(
        "SELECT kind, seq, data FROM streaming_sessionevent"
        " WHERE session_id = %s AND kind LIKE 'reader%%' ORDER BY id",
        session_id,
    )


def state(stack: Stack, session_id: str) -> str:
    ((found,),) = stack.sql("SELECT state FROM streaming_streamsession WHERE id = %s", session_id)
    return found


async def reset_after_tokens(key: str, reading: Reading, url: str) -> None:
    """Read a little, then end the connection with RST, as a killed program does."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(
        f"GET /v1/sessions/{reading.session_id}/events HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {key}\r\n\r\n".encode()
    )
    await reader.readuntil(b"event: token")
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_how_readers_come_and_go(stack_of_two):
    stack, _ = stack_of_two(pace=30)
    key = stack.api_key()
    async with Client(urls(stack), key) as client:
        reading = await client.create(question("visited", 200))
        await client.read(reading, leave_at=5)
        await until(lambda: len(visits(stack, reading.session_id)) == 2)
        joined, left = visits(stack, reading.session_id)
        assert joined[0] == "reader_joined"
        assert (joined[2]["protocol"], joined[2]["cursor"]) == ("sse", 0)
        assert left[0] == "reader_left"
        assert left[2]["how"] in ("closed", "reset")  # a client may leave bytes unread
        assert left[2]["reader"] == joined[2]["reader"]
        assert left[1] >= 5

        # By the process that does not own it, and ended the hard way.
        await reset_after_tokens(key, reading, urls(stack)[1])
        await until(lambda: len(visits(stack, reading.session_id)) == 4)
        joined, left = visits(stack, reading.session_id)[2:]
        assert left[2]["how"] == "reset"
        assert joined[2]["process"] != visits(stack, reading.session_id)[0][2]["process"]

        await client.read_on(reading, gateways=[1])
        reading.must_be_whole()
        await until(lambda: len(visits(stack, reading.session_id)) == 5)
        # Whoever is given everything has not left, and who reads it again adds nothing.
        await client.read_on(Reading(reading.session_id, reading.messages, 0))
        assert len(visits(stack, reading.session_id)) == 5


async def test_an_answer_that_staff_have_continued_is_finished_without_a_reader(stack_of_two):
    stack, _ = stack_of_two(pace=40, env={"GRACE_SECONDS": "0.5"})
    async with Client(urls(stack), stack.api_key()) as client:
        reading = await client.create(question("continued", 80))
        await client.read(reading, leave_at=3)
        await until(lambda: state(stack, reading.session_id) == "suspended")
        stack.sql(
            "UPDATE session_fence SET continue_requested = true WHERE session_id = %s",
            reading.session_id,
        )
        await until(lambda: state(stack, reading.session_id) == "completed", 20)
        reasons = stack.sql(
            "SELECT data ->> 'reason' FROM streaming_sessionevent"
            " WHERE session_id = %s AND kind = 'taken_over'",
            reading.session_id,
        )
        assert reasons == [("continued_by_staff",)]
        await client.read_on(reading)
        reading.must_be_whole()


async def test_a_process_tells_what_it_does_with_its_heartbeat(stack_of_two):
    stack, _ = stack_of_two(pace=30, gateways=1)

    def figures() -> dict[str, int]:
        ((found,),) = stack.sql("SELECT figures FROM streaming_gatewayinstance")
        return found

    async with Client(urls(stack), stack.api_key()) as client:
        reading = await client.create(question("counted", 150))
        reader = asyncio.create_task(client.read(reading))
        await until(lambda: figures().get("streams") == figures().get("readers") == 1)
        await reader
        tokens = reading.cursor - 1  # the last one has no text, and the end has a seq of its own
        await until(lambda: figures() == {**figures(), "streams": 0, "tokens": tokens})
