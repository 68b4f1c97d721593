"""The timeout ladder, and the system check that refuses one that does not rise."""

from __future__ import annotations

import dataclasses

import pytest
from django.conf import settings as django_settings
from hypothesis import given
from hypothesis import strategies as st

from streaming.checks import check_ladder
from streaming.conf import StreamingConf
from streaming.core.ladder import Ladder, problems, told_silence

DEFAULTS = StreamingConf()
NAMES = [f.name for f in dataclasses.fields(Ladder)]
LADDER = Ladder(**{name: getattr(DEFAULTS, name) for name in NAMES})


def kinds(**changes: float) -> list[str]:
    return [problem.kind for problem in problems(dataclasses.replace(LADDER, **changes))]


def test_the_defaults_hold_and_have_the_agreed_ratio():
    assert kinds() == []
    client, gateway, engine = (
        LADDER.client_silence, LADDER.gateway_silence, LADDER.engine_silence,
    )  # fmt: skip
    assert (client, gateway, engine) == (15, 22, 30)
    assert (gateway / client, engine / client) == (pytest.approx(1.5, abs=0.05), 2)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"keepalive_seconds": 15}, ["ladder"]),
        ({"keepalive_weak_seconds": 20}, ["ladder"]),
        ({"recovering_ping_seconds": 15}, ["ladder"]),
        ({"client_silence": 22}, ["ladder"]),
        ({"gateway_silence": 30}, ["ladder"]),
        ({"engine_silence": 10}, ["ladder"]),
        ({"first_token_timeout": 4000}, ["ladder"]),
        ({"gateway_silence": 0}, ["limit", "ladder"]),
        ({"max_answer_seconds": 0}, ["limit", "ladder", "ladder"]),
        ({"proxy_idle_seconds": 22}, ["idle"]),
        ({"proxy_idle_seconds": 22.5}, []),
        ({"proxy_idle_seconds": -1}, ["limit"]),
        ({"proxy_total_seconds": 3599}, ["total"]),
        ({"proxy_total_seconds": 3600}, []),
        ({"proxy_total_seconds": 300, "max_answer_seconds": 300}, []),
        ({"client_silence": 30, "gateway_silence": 45, "engine_silence": 60}, []),
    ],
)
def test_what_is_wrong_with_a_ladder(changes, found):
    assert kinds(**changes) == found


POSITIVE = st.floats(0.01, 10_000)


@given(st.builds(Ladder, **dict.fromkeys(NAMES, POSITIVE)))
def test_a_ladder_without_problems_rises(ladder):
    if problems(ladder):
        return
    assert ladder.keepalive_seconds < ladder.client_silence < ladder.gateway_silence
    assert ladder.gateway_silence < ladder.engine_silence
    assert ladder.gateway_silence < ladder.proxy_idle_seconds
    assert ladder.proxy_total_seconds >= ladder.max_answer_seconds


@given(POSITIVE, POSITIVE)
def test_a_client_is_never_told_to_give_up_between_two_heartbeats(silence, heartbeat):
    assert told_silence(silence, heartbeat) >= silence
    assert told_silence(silence, heartbeat) > heartbeat


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"client_silence": 30.0}, ["streaming.E003"]),
        ({"proxy_idle_seconds": 20.0}, ["streaming.E004"]),
        ({"proxy_total_seconds": 60.0}, ["streaming.E005"]),
        ({"client_silence": -1.0}, ["streaming.E002", "streaming.E003", "streaming.E003", "streaming.E003"]),
    ],
)  # fmt: skip
def test_the_system_check(settings, changes, found):
    settings.STREAMING = dataclasses.replace(django_settings.STREAMING, **changes)
    messages = check_ladder(app_configs=None)
    assert [message.id for message in messages] == found
    assert all(message.hint for message in messages)
