"""Every instant is in exactly one month, wherever it is read, and however zones have changed."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.core.months import Month, bounds, month_at, month_named, month_of, shifted

ZONES = sorted(zoneinfo.available_timezones())
AWKWARD = (
    "UTC",
    "Pacific/Kiritimati",  # UTC+14
    "Pacific/Niue",  # UTC-11
    "America/St_Johns",  # set its clocks back at 00:01
    "America/Havana",  # midnight of 2026-11-01 comes twice
    "America/Sao_Paulo",  # set its clocks forward at midnight
    "Asia/Beirut",
    "Asia/Kolkata",
    "Europe/Berlin",
)
instants = st.integers(0, 36_000 * 86_400).map(
    lambda seconds: datetime(1990, 1, 2, tzinfo=UTC) + timedelta(seconds=seconds)
)
zones = st.sampled_from(AWKWARD) | st.sampled_from(ZONES)


@given(instants, zones)
@settings(max_examples=200)
def test_an_instant_is_in_the_month_that_it_is_said_to_be_in_and_in_no_other(at, zone):
    name = month_of(at, zone)
    starts_at, ends_at = bounds(name, zone)
    assert starts_at <= at < ends_at
    assert bounds(shifted(name, -1), zone)[1] == starts_at
    assert bounds(shifted(name, 1), zone)[0] == ends_at


@given(zones, st.integers(1990 * 12, 2090 * 12))
@settings(max_examples=200)
def test_a_month_begins_with_the_first_instant_of_its_first_day(zone, count):
    name = f"{count // 12:04}-{count % 12 + 1:02}"
    starts_at, _ = bounds(name, zone)
    there = zoneinfo.ZoneInfo(zone)
    assert f"{starts_at.astimezone(there):%Y-%m}" == name
    moment_before = starts_at - timedelta(seconds=1)
    assert f"{moment_before.astimezone(there):%Y-%m}" == shifted(name, -1)


@pytest.mark.parametrize(
    ("name", "zone", "starts_at"),
    [
        ("2026-11", "Pacific/Kiritimati", "2026-10-31T10:00"),
        ("2026-11", "Pacific/Niue", "2026-11-01T11:00"),
        ("2026-11", "America/Havana", "2026-11-01T04:00"),
        ("2009-11", "America/St_Johns", "2009-11-01T02:30"),
        ("2026-11", "Europe/Berlin", "2026-10-31T23:00"),
    ],
)
def test_where_it_begins(name, zone, starts_at):
    assert bounds(name, zone)[0] == datetime.fromisoformat(starts_at).replace(tzinfo=UTC)


def test_a_midnight_that_is_left_out():
    # On 2006-11-05 Sao Paulo had none; on the first of a month, Amman in April 1999 … 2002.
    found = [
        (zone, year, month)
        for zone in ("Asia/Amman", "Asia/Damascus", "Africa/Cairo", "Asia/Gaza", "America/Asuncion")
        for year in range(1985, 2012)
        for month in range(1, 13)
        if _skips_midnight(zone, year, month)
    ]
    assert found
    for zone, year, month in found:
        at, _ = bounds(f"{year}-{month:02}", zone)
        there = zoneinfo.ZoneInfo(zone)
        assert at.astimezone(there).hour > 0
        assert (at - timedelta(microseconds=1)).astimezone(there).month != month


def _skips_midnight(zone: str, year: int, month: int) -> bool:
    local = datetime(year, month, 1, tzinfo=zoneinfo.ZoneInfo(zone))
    return local.astimezone(UTC).astimezone(local.tzinfo).hour != 0


@given(
    st.lists(
        st.tuples(
            zones, st.floats(0, 200, allow_nan=False, width=32), st.booleans(), st.integers(0, 6)
        ),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=200)
def test_months_of_changing_zones_leave_no_hole_and_do_not_overlap(steps):
    began = datetime(2026, 5, 31, 18, tzinfo=UTC)
    known: dict[str, Month] = {}
    for zone, days, near_the_end, months_on in steps:
        # Half of the instants are where months of different zones meet.
        at = began + timedelta(days=days)
        if near_the_end:
            at = bounds(shifted("2026-06", months_on), "UTC")[0] + timedelta(hours=days / 5 - 20)
        month = month_at(at, zone, known)
        assert at in month
        assert known.setdefault(month.name, month) == month
        in_order = [known[name] for name in sorted(known)]
        for one, other in pairwise(in_order):
            assert one.starts_at < one.ends_at <= other.starts_at < other.ends_at
            if other.name == shifted(one.name, 1):
                assert one.ends_at == other.starts_at
        named = month_named(shifted(month.name, 1), zone, known)
        assert named.starts_at == month.ends_at


@pytest.mark.parametrize("name", ["2026-13", "2026-00", "26-01", "2026-1", "2026-011", ""])
def test_what_is_no_month(name):
    with pytest.raises(ValueError, match="no month"):
        bounds(name, "UTC")
