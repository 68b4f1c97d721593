"""What each kind of collector is sent, and what its answers mean."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from billing.core.collectors import (
    NotDeliverable,
    Verdict,
    checked_options,
    message,
    verdict,
)
from streaming.core import signing

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def event(at: datetime = NOW, **data: Any) -> str:
    return json.dumps({"id": "s:1", "subject": "acme", "time": at.isoformat(), "data": data})


def test_cloud_events_go_out_as_they_are():
    for kind in ("webhook", "openmeter"):
        assert message(kind, {}, event(), NOW).body == event().encode()


def test_stripe_takes_nothing_that_is_old():
    options = {"customer": "cus_1"}
    young = event(NOW - timedelta(days=34), total_tokens=1)
    assert b"payload%5Bvalue%5D=1" in message("stripe", options, young, NOW).body
    with pytest.raises(NotDeliverable, match="35 days"):
        message("stripe", options, event(NOW - timedelta(days=36), total_tokens=1), NOW)
    with pytest.raises(NotDeliverable, match="usage only"):
        message("stripe", options, event(threshold_percent=80), NOW)
    with pytest.raises(NotDeliverable, match="negative"):
        message("stripe", options, event(total_tokens=-1), NOW)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("webhook", {"code": "x"}),
        ("stripe", {}),
        ("stripe", {"customer": "cus", "value": "amount"}),
        ("stripe", {"customer": 5}),
        ("lago", {"code": ""}),
    ],
)
def test_options_that_cannot_be(kind, options):
    with pytest.raises(ValueError, match="option"):
        checked_options(kind, options)


@pytest.mark.parametrize(
    ("kind", "status", "text", "meaning"),
    [
        ("webhook", 200, "", Verdict.TAKEN),
        ("openmeter", 204, "", Verdict.TAKEN),
        ("webhook", 410, "", Verdict.SINK_GONE),
        ("webhook", 400, "", Verdict.EVENT_REFUSED),
        ("webhook", 413, "", Verdict.EVENT_REFUSED),
        ("webhook", 422, "value_already_exist", Verdict.EVENT_REFUSED),
        ("lago", 422, '{"transaction_id":["value_already_exist"]}', Verdict.TAKEN),
        ("lago", 422, '{"code":["value_is_mandatory"]}', Verdict.EVENT_REFUSED),
        ("stripe", 400, "An event already exists with identifier s:1.", Verdict.TAKEN),
        ("stripe", 400, "No such meter", Verdict.EVENT_REFUSED),
        *(
            ("webhook", status, "", Verdict.SINK_FAILING)
            for status in (302, 401, 404, 429, 500, 503)
        ),
    ],
)
def test_what_an_answer_means(kind, status, text, meaning):
    assert verdict(kind, status, text) is meaning


def test_a_signature_is_the_one_of_the_specification():
    """A published example of it."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    message_id, body = "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}'
    headers = signing.headers([secret, b"another"], message_id, 1614265330, body)
    assert headers["webhook-id"] == message_id
    assert headers["webhook-timestamp"] == "1614265330"
    first, second = headers["webhook-signature"].split()
    assert first == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert second.startswith("v1,")
    assert signing.shown(secret) == "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
