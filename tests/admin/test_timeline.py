"""The picture of a session: whatever was stored, in whatever order, it can be drawn and read."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.admin.picture import MOST_PINGS, Mark, Paces, picture_of
from streaming.admin.timeline import LEFT, RIGHT, WIDTH, draw
from streaming.admin.timescale import SPACING, Scale, since
from streaming.core.course import Facts, Happening, Try
from streaming.core.story import tell

BEGAN = datetime(2026, 11, 3, 2, 13, 4, tzinfo=UTC)
PACES = Paces(keepalive=8.0, recovering=1.0)
SVG = "{http://www.w3.org/2000/svg}"


def at(milliseconds: float) -> datetime:
    return BEGAN + timedelta(milliseconds=milliseconds)


# Milliseconds to days, a few of them before the session's own beginning, many of them the same.
moments = st.one_of(st.integers(-50, 50), st.integers(0, 20_000), st.integers(0, 10**9)).map(at)
maybe = st.none() | moments
seqs = st.integers(0, 3000)
names = st.sampled_from(["gpu-1", "gpu-2", "gpu-3", "", "<svg>\u202e\x1b", "x" * 90])

tries = st.lists(
    st.builds(
        Try,
        number=st.integers(1, 90), kind=st.sampled_from(["first", "failover", "hedge", "odd"]),
        node=names, started_at=moments, first_token_at=maybe, ended_at=maybe,
        first_seq=st.none() | seqs, last_seq=st.none() | seqs,
        end_reason=st.sampled_from(["", "finished", "overtaken", "stalled", "odd <&>"]),
        grade=st.sampled_from(["", "exact", "text", "regenerated", "odd"]),
    ),
    max_size=12,
)  # fmt: skip
happenings = st.lists(
    st.builds(
        Happening,
        at=moments, seq=seqs,
        kind=st.sampled_from(
            ["created", "recovering", "recovered", "reader_joined", "reader_left", "taken_over",
             "suspended", "hedged", "engine_silent", "completed", "failed", "from the future"]
        ),
        data=st.sampled_from(
            [{}, {"reader": "1-1", "cursor": 3, "process": 1}, {"reader": "1-2", "how": "closed"},
             {"node": "gpu-1", "cause": "stalled"}, {"from": 1, "to": 2, "reason": "gateway_crash"},
             {"cursor": "x", "cause": "client_gone"}]
        ),
    ),
    max_size=20,
)  # fmt: skip
sessions = st.builds(
    Facts,
    state=st.sampled_from(["streaming", "recovering", "suspended", "completed", "failed"]),
    finish_reason=st.just(""), error_code=st.just(""), cause=st.just(""), created_at=moments,
    first_token_at=maybe, ended_at=maybe, tokens=seqs, delivered=seqs,
    tries=tries.map(tuple), happenings=happenings.map(tuple),
)  # fmt: skip
logs = st.lists(st.builds(Mark, at=moments, seq=seqs, attempt=st.integers(1, 9)), max_size=20)


def drawn(facts: Facts, marks=(), now=None) -> tuple[ElementTree.Element, str]:
    picture = picture_of(facts, tell(facts), marks, now=now or at(10_000), paces=PACES)
    text = draw(picture, title="Session <K7Q>", description="What & why")
    return ElementTree.fromstring(text), text


def facts(*attempts: Try, events=(), ended: float | None = 1000, **more) -> Facts:
    values = {
        "state": "streaming" if ended is None else "completed", "finish_reason": "stop",
        "error_code": "", "cause": "", "created_at": BEGAN, "first_token_at": None,
        "ended_at": None if ended is None else at(ended), "tokens": 100, "delivered": 100,
        "tries": attempts,
        "happenings": tuple(
            Happening(at=at(when), kind=kind, seq=seq, data=data) for when, kind, seq, data in events
        ),
    }  # fmt: skip
    return Facts(**{**values, **more})


def attempt(number: int, start: float, first: float | None, end: float | None, **more) -> Try:
    values = {
        "kind": "first" if number == 1 else "failover", "node": f"gpu-{number}",
        "end_reason": "finished",
    }  # fmt: skip
    return Try(
        number=number, started_at=at(start), first_token_at=None if first is None else at(first),
        ended_at=None if end is None else at(end), **{**values, **more},
    )  # fmt: skip


@given(sessions, logs)
def test_anything_can_be_drawn_and_stays_in_the_picture(session, marks):
    svg, _ = drawn(session, marks)
    _, _, width, height = (float(n) for n in svg.attrib["viewBox"].split())
    assert width == WIDTH
    for element in svg.iter():
        for name, limit in (
            ("x", width), ("x1", width), ("x2", width), ("cx", width), ("y", height),
            ("y1", height), ("y2", height), ("cy", height),
        ):  # fmt: skip
            if name in element.attrib:
                value = float(element.attrib[name])
                assert math.isfinite(value)
                assert 0 <= value <= limit
        if element.tag == f"{SVG}rect":
            x, wide = float(element.attrib["x"]), float(element.attrib["width"])
            assert wide > 0
            assert x + wide <= width + 0.1
            assert float(element.attrib["y"]) + float(element.attrib["height"]) <= height
        for pair in element.attrib.get("points", "").split():
            assert all(0 <= float(n) <= width for n in pair.split(","))


@given(sessions, logs)
def test_the_table_says_what_is_drawn_in_the_order_of_time(session, marks):
    picture = picture_of(session, tell(session), marks, now=at(10_000), paces=PACES)
    rows = picture.rows()
    assert [row.at for row in rows] == sorted(row.at for row in rows)
    assert all(row.until is None or row.until >= row.at for row in rows)
    assert all(row.what for row in rows)
    assert sum(row.what.startswith("Attempt ") for row in rows) == len(picture.bars)


@given(sessions, logs)
def test_tokens_never_go_back(session, marks):
    svg, _ = drawn(session, marks)
    for line in svg.iter(f"{SVG}polyline"):
        points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        for (x1, y1), (x2, y2) in pairwise(points):
            assert x2 >= x1
            assert y2 <= y1


@given(
    st.lists(moments, min_size=1, max_size=40), st.lists(st.tuples(moments, moments), max_size=5)
)
def test_time_runs_one_way_and_what_differs_is_told_apart(times, pairs):
    quiet = [(min(pair), max(pair)) for pair in pairs]
    scale = Scale(times, quiet, LEFT, RIGHT)
    places = [scale.x(moment) for moment in sorted(set(times))]
    assert all(LEFT <= x <= RIGHT for x in places)
    assert all(b - a > 0.5 for a, b in pairwise(places))
    assert scale.x(min(times) - timedelta(days=9)) == LEFT
    assert scale.x(max(times) + timedelta(days=9)) == (RIGHT if len(places) > 1 else LEFT)


@given(st.lists(moments, min_size=1, max_size=40))
def test_labels_of_ticks_do_not_cover_each_other(times):
    ticks = Scale(times, [], LEFT, RIGHT).ticks()
    assert ticks
    assert all(b.x - a.x >= SPACING for a, b in pairwise(ticks))


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=12))
def test_attempts_one_after_the_other_do_not_overlap(lengths):
    attempts, t = [], 0
    for number, (wait, runs) in enumerate(lengths, 1):
        attempts.append(
            attempt(number, t, t + wait, t + wait + runs, node="gpu-1", first_seq=number)
        )
        t += wait + runs + 1
    svg, _ = drawn(facts(*attempts, ended=t))
    bars = [
        (float(r.attrib["x"]), float(r.attrib["x"]) + float(r.attrib["width"]))
        for r in svg.iter(f"{SVG}rect")
        if r.attrib["class"].startswith("try ")
    ]
    assert len(bars) == len(lengths)
    assert all(after[0] >= before[1] for before, after in pairwise(sorted(bars)))


def test_a_failover_has_its_bars_its_gap_and_its_seam():
    failed = attempt(
        1,
        5,
        310,
        8241,
        end_reason="engine_error",
        first_seq=1,
        last_seq=412,
        last_token_at=at(8240),
    )
    went_on = attempt(2, 8243, 8278, 14702, grade="exact", first_seq=413, last_seq=733)
    events = [(8241, "recovering", 412, {"node": "gpu-1", "cause": "engine_error"})]
    session = facts(failed, went_on, events=events, ended=14702, tokens=733)
    svg, text = drawn(session)
    classes = [element.attrib.get("class", "") for element in svg.iter()]
    assert "try try-failed" in classes
    assert "try try-finished" in classes
    assert classes.count("gap") == classes.count("gap-label") == 1
    assert "join join-exact" in classes
    assert classes.count("end") == 1
    assert "2: exact 413–733" in text
    assert svg.attrib["role"] == "img"
    assert svg.find(f"{SVG}title").text == "Session <K7Q>"
    assert svg.find(f"{SVG}desc").text == "What & why"


def test_it_has_neither_scripts_nor_styles_of_its_own():
    svg, _ = drawn(facts(attempt(1, 0, 10, 500, node="<script>alert(1)</script>")))
    assert not [element for element in svg.iter() if element.tag in (f"{SVG}script", f"{SVG}style")]
    names = {name for element in svg.iter() for name in element.attrib}
    assert not [name for name in names if name == "style" or name.startswith("on")]


@pytest.mark.parametrize("ended", [None, 0, 1000])
def test_a_session_that_no_engine_was_asked_for(ended):
    svg, text = drawn(facts(ended=ended, tokens=0, delivered=0), now=BEGAN)
    assert "No engine" in text
    assert not [r for r in svg.iter(f"{SVG}rect") if r.attrib["class"].startswith("try")]


def test_a_long_absence_takes_little_of_the_picture():
    events = [
        (0, "reader_joined", 0, {"reader": "1-1", "process": 1}),
        (1000, "reader_left", 40, {"reader": "1-1", "process": 1, "how": "closed"}),
        (4000, "suspended", 60, {"cause": "client_gone"}),
        (7_204_000, "reader_joined", 40, {"reader": "1-2", "process": 1, "cursor": 40}),
    ]
    first = attempt(1, 0, 100, 4000, end_reason="cancelled", first_seq=1, last_seq=60)
    second = attempt(
        2,
        7_204_005,
        7_204_100,
        7_208_000,
        kind="resumption",
        grade="exact",
        first_seq=61,
        last_seq=100,
    )
    svg, _ = drawn(facts(first, second, events=events, ended=7_208_000))
    away = [r for r in svg.iter(f"{SVG}rect") if r.attrib["class"] == "away"]
    assert len(away) == 1
    assert float(away[0].attrib["width"]) < (RIGHT - LEFT) * 0.6
    assert [e for e in svg.iter(f"{SVG}path") if e.attrib["class"] == "squeezed"]
    assert len([r for r in svg.iter(f"{SVG}rect") if r.attrib["class"] == "here"]) == 2


def test_signs_of_life_are_those_that_were_due():
    """None in the first 8 s of silence; from the failure on one at once and one a second."""
    silent = attempt(
        1, 0, 100, 20_000, end_reason="stalled", first_seq=1, last_seq=9, last_token_at=at(1000)
    )
    later = attempt(2, 20_010, 22_500, 30_000, grade="exact", first_seq=10, last_seq=20)
    events = [(20_000, "recovering", 9, {"node": "gpu-1", "cause": "stalled"})]
    session = facts(silent, later, events=events, ended=30_000, tokens=20, first_token_at=at(100))
    picture = picture_of(session, tell(session), [], now=at(30_000), paces=PACES)
    (silence,) = picture.silences
    offsets = [(ping - BEGAN) / timedelta(seconds=1) for ping in silence.pings]
    assert offsets == [9.0, 17.0, 20.0, 21.0, 22.0]
    assert silence.count == 5


def test_of_very_many_signs_of_life_a_few_are_drawn_and_all_are_counted():
    session = facts(ended=None, tokens=0, delivered=0)
    picture = picture_of(session, tell(session), [], now=at(3_600_000), paces=PACES)
    (silence,) = picture.silences
    assert len(silence.pings) == MOST_PINGS
    assert silence.count == 449


def test_many_nodes_and_attempts_share_what_room_there_is():
    attempts = [
        attempt(n, n * 100, n * 100 + 10, n * 100 + 90, end_reason="stalled") for n in range(1, 91)
    ]
    svg, text = drawn(facts(*attempts, ended=9200))
    assert "other nodes" in text
    assert len([r for r in svg.iter(f"{SVG}rect") if r.attrib["class"].startswith("try ")]) == 40


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(0, "0"), (38, "0.038 s"), (12_400, "12.4 s"), (125_412, "2:05.412"), (3_725_000, "1:02:05"), (90_000_000, "1 d 1:00")],
)  # fmt: skip
def test_times_on_the_axis(milliseconds, words):
    assert since(timedelta(milliseconds=milliseconds)) == words


def test_a_gap_is_over_with_the_next_token_whatever_its_reader_has_waited_for():
    """The gateway dies after token 9; the answer goes on at once, and its reader never comes back."""
    events = [
        (0, "reader_joined", 0, {"reader": "1-1", "process": 1}),
        (1100, "taken_over", 9, {"from": 1, "to": 2, "reason": "gateway_crash"}),
    ]
    died = attempt(
        1, 0, 100, 1100, end_reason="gateway_crash", first_seq=1, last_seq=9, last_token_at=at(1000)
    )
    later = attempt(
        2, 1110, 1200, 9000, kind="resumption", grade="exact", first_seq=10, last_seq=90
    )
    session = facts(died, later, events=events, ended=9000, tokens=90, delivered=9)
    picture = picture_of(session, tell(session), [], now=at(9000), paces=PACES)
    assert picture.gaps
    assert {(gap.start, gap.end) for gap in picture.gaps if not gap.open} <= {(at(1000), at(1200))}
