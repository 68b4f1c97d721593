"""What is hashed, and how a chain is walked: without a database."""

from __future__ import annotations

import dataclasses
import enum
import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.chain import GENESIS, Link, Walk, canonical, fingerprint, moment, printable

AT = datetime(2026, 11, 30, 3, 4, 5, 123456, tzinfo=UTC)
FIRST = Link(1, AT, "node.drain", "user:pat", "node:gpu-1", 7, UUID(int=5), '{"a":1}')

anything = st.text(st.characters(exclude_categories=[]))  # lone surrogates too
values = st.recursive(
    st.none() | st.booleans() | st.integers() | anything,
    lambda inner: st.lists(inner) | st.dictionaries(anything, inner),
)


class Colour(enum.StrEnum):
    RED = "red"


def chain(length: int) -> list[tuple[Link, bytes, bytes]]:
    """Links as the database has them: with what they follow, and their hash."""
    rows = []
    previous = GENESIS
    for seq in range(1, length + 1):
        link = dataclasses.replace(FIRST, seq=seq)
        rows.append((link, previous, link.hash(previous)))
        previous = rows[-1][2]
    return rows


def walked(rows: list[tuple[Link, bytes, bytes]]) -> list[tuple[int, str]]:
    walk = Walk()
    return [wrong for row in rows for wrong in walk.step(*row)]


def test_the_hash_is_the_one_that_was_agreed_upon():
    # Changing what is hashed would break every log there is.
    assert FIRST.hash(GENESIS).hex() == (
        "27f819b56e5fb305dbc925702fd34fafe0e8683b5e779db0961248ff88d0f5db"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"seq": 2}, {"at": AT + timedelta(microseconds=1)}, {"action": "node.drai"},
        {"actor": "nuser:pat"}, {"subject": "node:gpu-17"}, {"tenant_id": None}, {"tenant_id": 77},
        {"session_id": None}, {"data": '{"a":2}'},
    ],
)  # fmt: skip
def test_every_field_is_in_the_hash(change):
    assert dataclasses.replace(FIRST, **change).hash(GENESIS) != FIRST.hash(GENESIS)
    assert FIRST.hash(bytes(31) + b"\1") != FIRST.hash(GENESIS)


@given(anything, anything, anything, anything)
def test_nothing_can_be_moved_from_one_field_into_the_next(action, actor, other, another):
    action, actor, other, another = map(printable, (action, actor, other, another))
    one = dataclasses.replace(FIRST, action=action, actor=actor)
    two = dataclasses.replace(FIRST, action=other, actor=another)
    assert (one.hash(GENESIS) == two.hash(GENESIS)) == (one == two)


@given(values, anything)
def test_whatever_is_said_postgresql_takes_it(value, key):
    text = canonical({key: value})
    assert "\x00" not in text
    assert not any("\ud800" <= letter <= "\udfff" for letter in text)
    again = json.loads(text)
    assert canonical(again) == text
    # No escape brings back what was taken out: jsonb refuses it too.
    assert "\\u0000" not in text.replace("\\\\", "")


def test_there_is_one_spelling():
    assert canonical({"b": Decimal("1.50"), "a": AT, "c": Colour.RED, "d": (True, None)}) == (
        '{"a":"2026-11-30T03:04:05.123456Z","b":"1.5","c":"red","d":[true,null]}'
    )
    assert canonical({"a": Decimal("0E-18")}) == canonical({"a": Decimal("-0.00")}) == '{"a":"0"}'
    assert canonical({"a": Decimal("1E+3")}) == '{"a":"1000"}'
    assert canonical({"é": "\x00\ud83d"}) == '{"é":"\ufffd\ufffd"}'
    assert fingerprint({"a": 1}) == fingerprint({"a": 1})


@pytest.mark.parametrize(
    "value",
    [1.0, [1.0], {"x": {"y": 0.1}}, float("nan"), Decimal("NaN"), Decimal("Infinity"), b"x", {1: 2},
     {1, 2}, datetime(2026, 1, 1), object()],  # noqa: DTZ001  that one without a zone
)  # fmt: skip
def test_what_has_no_single_spelling_is_refused(value):
    with pytest.raises(TypeError):
        canonical({"value": value})


def test_a_time_is_the_same_in_every_zone():
    there = AT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert moment(there) == moment(AT) == "2026-11-30T03:04:05.123456Z"
    assert moment(AT.replace(microsecond=0, year=999)) == "0999-11-30T03:04:05.000000Z"


def test_a_whole_chain_has_nothing_wrong():
    assert walked(chain(5)) == []
    assert walked([]) == []


def test_a_change_is_told_once_and_of_the_link_that_was_changed():
    rows = chain(5)
    link, previous, stored = rows[2]
    rows[2] = (dataclasses.replace(link, actor="user:eve"), previous, stored)
    assert walked(rows) == [(3, "was changed: its hash does not fit its columns")]


def test_a_link_whose_hash_was_made_to_fit_betrays_itself_by_the_next():
    rows = chain(5)
    forged = dataclasses.replace(rows[2][0], actor="user:eve")
    rows[2] = (forged, rows[2][1], forged.hash(rows[2][1]))
    assert walked(rows) == [(3, "was replaced: entry 4 follows one with another hash")]


def test_missing_links_are_named():
    rows = chain(7)
    assert walked(rows[:2] + rows[3:]) == [(3, "is missing")]
    assert walked(rows[:2] + rows[5:]) == [(3, "to 5 are missing")]
    assert walked(rows[1:]) == [(1, "is missing")]


def test_links_that_do_not_belong_are_named():
    zero = dataclasses.replace(FIRST, seq=0)
    begins = [(zero, GENESIS, zero.hash(GENESIS)), *chain(2)]
    assert walked(begins)[0] == (0, "does not belong here: numbers begin with 1")
    stranger = b"\1" * 32
    assert walked([(FIRST, stranger, FIRST.hash(stranger))]) == [
        (1, "does not begin the chain: it follows something")
    ]


@given(st.permutations(range(6)))
def test_no_other_order_passes(order):
    rows = chain(6)
    # As somebody would who swaps everything but the numbers.
    shuffled = [
        (dataclasses.replace(rows[there][0], seq=here + 1), *rows[there][1:])
        for here, there in enumerate(order)
    ]
    assert (walked(shuffled) == []) == (list(order) == list(range(6)))
