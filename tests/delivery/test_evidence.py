"""What counts as delivered, beyond a single reader: denials, whole answers, early acknowledgements."""

from __future__ import annotations

from uuid import UUID

import psycopg

from streaming.core.delivery import Marks
from streaming.runtime import delivery
from tests.delivery.conftest import House
from tests.delivery.story import Door, Story, outcome
from tests.durability.reader import question, until

TOKENS = 30
END = TOKENS + 2
"""The token that ends the answer, and the terminal record."""


async def store(house: House, story: Story, marks: Marks, denied: int) -> delivery.Moved | None:
    connection = await psycopg.AsyncConnection.connect(house.stack.database_url, autocommit=True)
    async with connection:
        return await delivery.store(connection, UUID(story.session_id), marks, denied)


def announced(house: House, story: Story) -> list[str]:
    rows = house.stack.sql(
        "SELECT kind FROM streaming_outboxmessage WHERE session_id = %s ORDER BY id",
        story.session_id,
    )
    return [kind for (kind,) in rows]


async def test_a_lower_cursor_outweighs_what_a_socket_took(house: House, door: Door) -> None:
    story = await door.create(house.url, question("denied", TOKENS))
    await door.read(house.url, story)
    await until(lambda: outcome(house.stack, story).delivered_seq == END)
    before = announced(house, story)
    moved = await store(house, story, Marks(sent=10, cursor=10), denied=10)
    assert moved == (END, 10, TOKENS + 1)
    assert outcome(house.stack, story).evidence == "cursor"
    assert announced(house, story) == [*before, "session_delivered"], "billing has to hear of it"
    # It is sent again from there, and then counts again.
    again = Story(story.messages, story.session_id, text=story.answer.text[:0], cursor=10)
    await door.read(house.url, again)
    await until(lambda: delivered_of(house, story) == END)
    assert announced(house, story)[-1] == "session_delivered"


def delivered_of(house: House, story: Story) -> int:
    [(seq,)] = house.stack.sql(
        "SELECT delivered_seq FROM session_fence WHERE session_id = %s", story.session_id
    )
    return seq


async def test_what_was_acknowledged_cannot_be_denied(house: House, door: Door) -> None:
    story = await door.create(house.url, question("acknowledged", TOKENS))
    await door.read(house.url, story)
    assert (await door.ack(house.url, story, 20))[0] == 200
    await until(lambda: outcome(house.stack, story).delivered_seq == END)
    assert await store(house, story, Marks(sent=5, cursor=5), denied=5) == (END, 20, TOKENS + 1)


async def test_a_reader_that_returns_with_less_is_believed(house: House, door: Door) -> None:
    """By the protocol: what its former connection's socket took is denied before it is sent anew."""
    story = await door.create(house.url, question("returns", 400))
    await door.read(house.url, story, leave_at=60)
    await until(lambda: delivered_of(house, story) >= 30)
    returned = Story(story.messages, story.session_id, cursor=15)
    await door.read(house.url, returned, leave_when=lambda: True)
    [(cursor,)] = house.stack.sql(
        "SELECT cursor_seq FROM session_fence WHERE session_id = %s", story.session_id
    )
    assert cursor == 15
    await door.stop(house.url, story)


async def test_an_acknowledgement_counts_no_further_than_was_sent(house: House) -> None:
    async with Door(house.stack.api_key(on_disconnect="finish")) as door:
        story = await door.create(house.url, question("too early", TOKENS))
        await until(lambda: durable_of(house, story) == END)
        assert await door.ack(house.url, story, 20) == (200, {"delivered_seq": 0})
        await door.read(house.url, story, headers={"last-event-id": ""})
        await until(lambda: delivered_of(house, story) == END)


def durable_of(house: House, story: Story) -> int:
    [(seq,)] = house.stack.sql(
        "SELECT durable_seq FROM session_fence WHERE session_id = %s", story.session_id
    )
    return seq


async def test_an_answer_that_is_not_streamed_is_delivered_too(house: House, door: Door) -> None:
    body = {"model": "sim-model", "messages": question("at once", TOKENS), "temperature": 0}
    status, answer = await door.call("POST", f"{house.url}/v1/chat/completions", body)
    assert status == 200
    session = Story([], str(UUID(answer["id"].removeprefix("chatcmpl-"))))
    await until(lambda: delivered_of(house, session) == END)


async def test_attempts_account_for_every_token(house: House, door: Door) -> None:
    """Generated = in the log + discarded + repeated; and the engine counts as we do."""
    house.engine.set_fault(kind="reset", at_token=12, times=1)
    story = await door.create(house.url, question("accounts", TOKENS))
    await door.read_on([house.url], story)
    assert story.is_whole
    await until(
        lambda: all(
            ended is not None
            for (ended,) in house.stack.sql(
                "SELECT ended_at FROM streaming_attempt WHERE session_id = %s", story.session_id
            )
        )
    )
    rows = house.stack.sql(
        "SELECT generated_tokens, discarded_tokens, repeated_tokens, first_seq, last_seq,"
        " engine_completion_tokens FROM streaming_attempt WHERE session_id = %s ORDER BY number",
        story.session_id,
    )
    assert len(rows) == 2
    for generated, discarded, repeated, first, last, _ in rows:
        assert generated == discarded + repeated + (last - first + 1 if first else 0)
    assert rows[0][5] is None, "it died before it told"
    assert rows[1][5] == rows[1][0]
