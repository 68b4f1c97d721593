"""What readers get of a filtered answer, over each way in; and what becomes of it when gateways die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import openai
import pytest

from streaming.client import ContentViolation, SessionReader, UnbrokenClient
from streaming.core.content_rules import Action, Rule
from tests.content import model
from tests.content.stored_rules import put, wait_until_applied
from tests.durability.reader import Readers, question, until
from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess
from tests.resume.events import Client
from tests.stack import Stack
from tests.websocket.talk import chat, talk

LONGEST = 256
ASK = question("Tell everybody", 40, "plain")
ANSWER = expected_answer(ASK)
WORDS = ANSWER.text.split()
STOP = Rule("no further", f"{WORDS[20]} {WORDS[21]}", Action.STOP)
MASKS = [
    Rule("letter", r"\b[btw]\w+", Action.MASK, is_regex=True, replacement="*"),
    Rule("pair", r"\bthe \w+", Action.MASK, is_regex=True, replacement="—"),
]
HOSTILE = [
    Rule("nested", r"(a+)+$", Action.MASK, is_regex=True),
    Rule("nested twice", r"(?:\w+\s?)+!#", Action.STOP, is_regex=True),
    Rule("counted", r"(?:a?){200}a{50}", Action.FLAG, is_regex=True),
    Rule("dots", r".*.*.*.*=", Action.MASK, is_regex=True),
    Rule("either", "|".join(f"{a}{b}{c}" for a in "xyz" for b in "xyz" for c in "aeiou"), Action.MASK, is_regex=True),
]  # fmt: skip


@dataclass(frozen=True)
class House:
    stack: Stack
    acme: str
    """Its rules change from test to test."""
    globex: str
    """It has none of its own."""


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with (
        SimulatorProcess("vllm", pace=200) as one,
        SimulatorProcess("vllm", pace=200) as other,
        Stack(
            gateways=2,
            engine_nodes=[f"a=vllm+{one.url}", f"b=vllm+{other.url}"],
            env={"HEALTH_INTERVAL": "0.3"},
        ) as stack,
    ):
        yield House(stack, stack.api_key("acme"), stack.api_key("globex"))


def sdk(house: House, key: str = "") -> openai.OpenAI:
    url = f"{house.stack.gateway().url}/v1"
    return openai.OpenAI(base_url=url, api_key=key or house.acme, max_retries=0)


def ask_sdk(house: House, key: str = "", messages=ASK):
    return sdk(house, key).chat.completions.create(
        model="sim-model", messages=messages, temperature=0
    )


def apply(house: House, rules: list[Rule]) -> str:
    """Have them in force for acme; what is shown of the answer then."""
    put(house.stack.sql, rules)
    shown, _ = model.whole(rules, ANSWER.text, LONGEST)
    wait_until_applied(lambda: ask_sdk(house).choices[0].message.content or "", shown)
    return shown


async def test_a_stop_over_every_way_in(house: House) -> None:
    shown = await asyncio.to_thread(apply, house, [STOP])
    assert shown != ANSWER.text

    whole = await asyncio.to_thread(ask_sdk, house)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (
        shown,
        "content_filter",
    )
    assert whole.usage is not None
    assert whole.usage.completion_tokens < ANSWER.completion_tokens

    def stream() -> tuple[str, list[str]]:
        chunks = list(
            sdk(house).chat.completions.create(
                model="sim-model", messages=ASK, temperature=0, stream=True
            )
        )
        said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        return said, [
            c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason
        ]

    assert await asyncio.to_thread(stream) == (shown, ["content_filter"])

    async with Readers(house.stack.gateway(1).url, house.acme) as readers:
        seen = await readers.ask(ASK)
        assert (seen.text, seen.finish_reason, seen.done) == (shown, "content_filter", True)
        # Another tenant's answers are its own.
        async with Readers(house.stack.gateway().url, house.globex) as others:
            assert (await others.ask(ASK)).is_whole

    pieces = []

    async def read_all(reader: SessionReader) -> None:
        async for piece in reader:
            pieces.append(piece.text)

    async with UnbrokenClient(house.stack.gateway().url, house.acme) as client:
        begun = await client.start({"model": "sim-model", "messages": ASK, "temperature": 0})
        with pytest.raises(ContentViolation):
            await read_all(begun)
    assert "".join(pieces) == shown

    async with talk(f"{house.stack.gateway().websocket_url}/ws/chat/", house.acme) as socket:
        request = {**chat("", 1), "messages": ASK}
        await socket.say("start", request=request)
        await socket.read_until(lambda: any(one.end for one in socket.sessions.values()))
        (followed,) = socket.sessions.values()
        assert followed.text == shown
        assert followed.end is not None
        assert (followed.end["type"], followed.end["finish_reason"]) == ("done", "content_filter")

    # Whoever comes back for it gets the same.
    async with Client([house.stack.gateway(1).url], house.acme) as client:
        reading = await client.create(ASK)
        await client.read_on(reading)
        assert reading.end is not None
        assert (reading.text, reading.end["finish_reason"]) == (shown, "content_filter")
        again = await client.read(type(reading)(reading.session_id, ASK))
        assert again.text == shown


async def test_a_masked_answer_outlives_its_gateway(house: House) -> None:
    """Its next owner knows nothing but the log: it goes on from the last character shown."""
    rules = [*MASKS, Rule("seen", r"\b\w+ \w+ \w{4}", Action.FLAG, is_regex=True)]
    await asyncio.to_thread(apply, house, rules)
    sessions = 8
    asks = [question(f"Outlive it {number}", 150, "plain") for number in range(sessions)]
    async with Client([gateway.url for gateway in house.stack.gateways], house.acme) as client:
        readings = [await client.create(ask) for ask in asks]
        tasks = [
            asyncio.create_task(client.read_on(reading, gateways=(0, 1), seconds=60))
            for reading in readings
        ]
        await until(lambda: all(reading.seq >= 20 for reading in readings), 30)
        house.stack.gateway(0).kill()
        await asyncio.gather(*tasks)
    house.stack.gateway(0).start_again()
    for reading in readings:
        shown, _ = model.whole(rules, reading.answer.text, LONGEST)
        assert reading.text == shown
        assert reading.end is not None
        assert reading.end["finish_reason"] == reading.answer.finish_reason
    taken = house.stack.sql(
        "SELECT count(*) FROM session_fence WHERE epoch > 1 AND session_id = ANY(%s::uuid[])",
        [reading.session_id for reading in readings],
    )
    assert taken[0][0] > 0


async def test_hostile_rules_stall_nobody(house: House) -> None:
    """They are applied in time that is linear in the text; another tenant's readers notice nothing."""
    await asyncio.to_thread(put, house.stack.sql, HOSTILE)
    hostile = [{"role": "user", "content": "a" * 300 + " [[tokens=300]][[alphabet=mixed]]"}]
    shown, _ = model.whole([], expected_answer(hostile).text, LONGEST)
    gateway = house.stack.gateway(0)
    async with (
        Readers(gateway.url, house.acme) as ours,
        Readers(gateway.url, house.globex) as others,
    ):
        done = asyncio.Event()

        async def keep_asking() -> int:
            answers = 0
            while not done.is_set():
                assert (await ours.ask(hostile)).done
                answers += 1
            return answers

        under_way = [asyncio.create_task(keep_asking()) for _ in range(4)]
        try:
            seen = [await others.ask(question(f"Beside it {n}", 150)) for n in range(3)]
        finally:
            done.set()
        assert all(count > 0 for count in await asyncio.gather(*under_way))
    assert all(one.is_whole for one in seen)
    # No search holds the process for anything like the time that backtracking takes: for ever.
    gaps = [b - a for one in seen for a, b in pairwise(one.token_times)]
    assert max(gaps) < 5, max(gaps)
    assert shown


async def test_what_is_found_often_is_counted(house: House) -> None:
    rules = [Rule("every", r"\w", Action.MASK, is_regex=True, replacement="·")]
    await asyncio.to_thread(apply, house, rules)
    async with Client([house.stack.gateway().url], house.acme) as client:
        reading = await client.read_on(await client.create(ASK))
    assert set(reading.text) <= {"·", *" .,!?;:-()'—…"}
    rows = house.stack.sql(
        "SELECT (data->>'count')::int FROM streaming_sessionevent WHERE session_id = %s"
        " AND kind = 'filtered'",
        reading.session_id,
    )
    _, names = model.whole(rules, ANSWER.text, LONGEST)
    assert len(rows) == 21
    assert sum(count for (count,) in rows) == len(names)
    queue = house.stack.sql(
        "SELECT review, content_action FROM streaming_streamsession WHERE id = %s",
        reading.session_id,
    )
    assert queue == [("", "")]


async def test_rules_that_change_are_known_soon_and_rules_for_all_hold_for_all(
    house: House,
) -> None:
    put(house.stack.sql, [], "acme")
    for_all = [Rule("all", WORDS[3], Action.MASK)]
    put(house.stack.sql, for_all, None)
    shown, _ = model.whole(for_all, ANSWER.text, LONGEST)
    began = time.monotonic()
    await asyncio.to_thread(
        wait_until_applied,
        lambda: ask_sdk(house, house.globex).choices[0].message.content or "",
        shown,
    )
    print(f"\nknown after {time.monotonic() - began:.1f} s")
    put(house.stack.sql, [], None)
    await asyncio.to_thread(
        wait_until_applied,
        lambda: ask_sdk(house, house.globex).choices[0].message.content or "",
        ANSWER.text,
    )
