"""What customers are told of an incident: right in number, and nothing of what is inside."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from streaming.core.attribution import Blame
from streaming.core.notice import Hit, notice

AT = datetime(2026, 11, 28, 2, 14, 3, 500_000, tzinfo=UTC)
HIT = Hit(
    began=AT, ended=AT + timedelta(seconds=2), cause="engine_oom", answers=37, quiet=30, paused=4,
    waiting=1, lost=2, pause_ms=640.0, charged=["1.23 EUR"], credited=["0.50 EUR"], whose="your",
)  # fmt: skip


def test_all_there_is_to_tell():
    assert notice(HIT) == (
        "On 28 November 2026 between 02:14:03 and 02:14:05 UTC, one of the servers that write answers"
        " failed. 37 of your answers were affected.\n\n"
        "30 of them went on without a pause that a reader would notice. 4 of them went on after a"
        " pause of up to about 0.7 seconds. Where an answer went on, nothing of it was shown twice or"
        " left out. 1 of them waits for its reader, and goes on when the reader comes back. 2 of them"
        " were broken off; readers kept what they had been shown until then.\n\n"
        "Only what reached a reader is charged: 1.23 EUR for these answers. Of that, 0.50 EUR was"
        " credited.\n\n"
        "We are sorry for the trouble."
    )


def test_of_nothing_nothing_is_told():
    told = notice(
        replace(HIT, quiet=0, paused=0, waiting=0, lost=1, answers=1, charged=None, credited=None)
    )
    assert "1 of your answers was affected" in told
    assert "It was broken off" in told
    assert "went on" not in told
    assert "Only what reached a reader is charged." in told
    assert "credited" not in told


@pytest.mark.parametrize(
    ("began", "ended", "words"),
    [
        (AT, AT, "On 28 November 2026 at 02:14:03 UTC"),
        (
            AT,
            AT + timedelta(days=1),
            "Between 28 November 2026, 02:14:03 UTC, and 29 November 2026, 02:14:03 UTC",
        ),
        # Whatever the zone of whoever reads it.
        (
            AT.astimezone(timezone(timedelta(hours=-5))),
            AT,
            "On 28 November 2026 at 02:14:03 UTC",
        ),
    ],
)
def test_when_is_told_in_utc(began, ended, words):
    assert notice(replace(HIT, began=began, ended=ended)).startswith(words + ", ")


@pytest.mark.parametrize("cause", [*Blame, "", "of another version"])
def test_every_cause_is_told_in_words_of_everyday(cause):
    told = notice(replace(HIT, cause=cause)).casefold()
    for inside in ("engine", "gpu", "kv", "token", "node", "gateway", "_"):
        assert inside not in told


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(38, "0.1 seconds"), (990, "1 second"), (1267, "1.3 seconds"), (4000, "4 seconds"), (61_200, "62 seconds"), (200_000, "4 minutes")],
)  # fmt: skip
def test_pauses_are_told_as_people_count_them(milliseconds, words):
    assert f"up to about {words}." in notice(replace(HIT, pause_ms=milliseconds))


def test_several_currencies():
    told = notice(replace(HIT, charged=["1 EUR", "2 USD", "300 JPY"]))
    assert "1 EUR, 2 USD and 300 JPY for these answers" in told
