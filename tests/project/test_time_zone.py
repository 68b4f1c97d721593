"""Times in the zone of whoever looks."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from django.urls import reverse
from django.utils import timezone

from gateway_project.time_zone import BROWSER_COOKIE, CHOSEN_COOKIE
from streaming.admin.times import ago, clock, local, utc
from streaming.models import InferenceNode

SUMMER = datetime(2026, 7, 1, 12, 0, 5, 123_456, tzinfo=UTC)
WINTER = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


def test_times_say_their_zone():
    with timezone.override(ZoneInfo("Europe/Berlin")):
        assert local(SUMMER) == "2026-07-01 14:00:05 CEST"
        assert local(SUMMER, precise=True) == "2026-07-01 14:00:05.123 CEST"
        assert local(WINTER) == "2026-12-01 13:00:00 CET"
        assert clock(SUMMER) == "14:00:05.123"
        assert utc(SUMMER) == "2026-07-01 12:00:05 UTC"
    assert local(SUMMER) == "2026-07-01 12:00:05 UTC"
    assert (local(None), clock(None), utc(None)) == ("-", "-", "-")


def test_ages_in_words():
    seconds = (0.4, 1, 59, 119, 120, 7199, 7200, 172_800)
    assert [ago(age) for age in seconds] == [
        "now", "1 s ago", "59 s ago", "119 s ago", "2 min ago", "119 min ago", "2 h ago", "2 d ago",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("browser", "chosen", "shown"),
    [
        ("", "", "12:00:00 UTC"),
        ("Asia%2FTokyo", "", "21:00:00 JST"),
        ("Asia/Tokyo", "Europe/Berlin", "13:00:00 CET"),
        ("Asia/Tokyo", "../../etc/passwd", "21:00:00 JST"),
        ("Nowhere/At-All", "<script>", "12:00:00 UTC"),
        ("x" * 3000, "localtime", "12:00:00 UTC"),
    ],
)
def test_the_chosen_zone_before_the_browsers_before_utc(admin_client, browser, chosen, shown):
    node = InferenceNode.objects.create(
        name="a", dialect="vllm", base_url="http://a:1", created_at=WINTER
    )
    admin_client.cookies[BROWSER_COOKIE] = browser
    admin_client.cookies[CHOSEN_COOKIE] = chosen
    html = admin_client.get(reverse("admin:streaming_inferencenode_change", args=[node.pk]))
    assert f"2026-12-01 {shown}" in html.content.decode()
    # The zone is the request's alone.
    assert timezone.get_current_timezone_name() == "UTC"


def test_choosing_and_unchoosing(admin_client):
    url = reverse("time-zone")
    answer = admin_client.post(url, {"zone": "Asia/Tokyo", "next": "/admin/billing/"})
    assert (answer.status_code, answer["Location"]) == (302, "/admin/billing/")
    assert admin_client.cookies[CHOSEN_COOKIE].value == "Asia/Tokyo"
    answer = admin_client.post(url, {"zone": "", "next": "https://evil.example/"})
    assert answer["Location"] == reverse("admin:index")
    assert admin_client.cookies[CHOSEN_COOKIE].value == ""
    assert admin_client.post(url, {"zone": "Nowhere"}).status_code == 200


def test_strangers_choose_nothing(client, db):
    assert client.get(reverse("time-zone")).status_code == 302
