"""Identifiers."""

from __future__ import annotations

import re
import time

from streaming.core.ids import new_seed, reference_code, uuid7


def test_uuids_are_of_version_7_and_carry_their_time():
    before = time.time_ns() // 1_000_000
    ids = [uuid7() for _ in range(1000)]
    after = time.time_ns() // 1_000_000
    assert len(set(ids)) == 1000
    for one in ids:
        assert one.version == 7
        assert one.variant == "specified in RFC 4122"
        assert before <= one.int >> 80 <= after


def test_uuids_are_sorted_by_time():
    first = uuid7()
    time.sleep(0.002)
    assert first < uuid7()


def test_reference_codes_can_be_read_out():
    for _ in range(200):
        assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{3}-[0-9A-HJKMNP-TV-Z]{3}", reference_code())


def test_seeds_fit_every_engine():
    assert all(0 <= new_seed() < 2**31 for _ in range(1000))
