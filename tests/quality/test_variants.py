"""The sides of a comparison, as the command prints them; and what VARIANTS may say."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse
from django.utils import timezone

from streaming.checks import check_variants
from streaming.models import SessionEvent
from streaming.runtime.quality import variant_label
from streaming.services.variants import compare_variants
from tests.admin.rows import add_session

pytestmark = pytest.mark.django_db


def test_two_sides():
    now = timezone.now()
    for number, (variant, ms, health) in enumerate(
        [("blue", 100, 90), ("blue", 300, 30), ("green", 50, None), ("", 10, 100)]
    ):
        at = now - timedelta(hours=1)
        session = add_session(
            reference=f"AAA-00{number}", variant=variant, health=health, created_at=at,
            first_token_at=at + timedelta(milliseconds=ms),
            gap_ms=40.0 if health == 30 else None, noticed=health == 30,
        )  # fmt: skip
        for cursor in (0, 7):
            SessionEvent.objects.create(
                session=session, at=now, kind="reader_joined", seq=0, data={"cursor": cursor}
            )
    add_session(reference="AAA-009", variant="blue", created_at=now - timedelta(days=9))
    sides = {side.variant: side for side in compare_variants(now - timedelta(days=1))}
    blue = sides["blue"]
    assert (blue.sessions, blue.first_token_p50, blue.gaps, blue.gap_p95) == (2, 200.0, 1, 40.0)
    assert (blue.noticed, blue.returns, blue.health, blue.weak) == (1, 2, 60.0, 1)
    assert (sides["green"].health, sides["green"].weak, sides[""].sessions) == (None, 0, 1)
    assert compare_variants(now - timedelta(days=1), tenant="nobody") == []
    out = StringIO()
    call_command("compare_variants", "--since=24h", stdout=out)
    head, none, first, second = out.getvalue().splitlines()
    assert head.startswith("VARIANT")
    assert none.startswith("-")
    assert first.split()[:5] == ["blue", "2", "200", "ms", "290"]
    assert second.startswith("green")
    with pytest.raises(CommandError):
        call_command("compare_variants", "--since=lately")


@pytest.mark.parametrize(
    ("names", "is_right"),
    [("", True), ("blue, green", True), ("blue green", False), ("é", False),
     (",".join(f"v{n}" for n in range(20)), True), (",".join(f"v{n}" for n in range(21)), False)],
)  # fmt: skip
def test_what_variants_may_say(settings, names, is_right):
    settings.STREAMING = dataclasses.replace(settings.STREAMING, variants=names)
    assert [found.id for found in check_variants(None)] == ([] if is_right else ["streaming.E011"])


def test_metrics_tell_apart_only_those(settings):
    settings.STREAMING = dataclasses.replace(settings.STREAMING, variants="blue, green")
    labels = [variant_label(name) for name in ("", "blue", "green", "x" * 32, "other")]
    assert labels == ["none", "blue", "green", "other", "other"]


def test_the_desk_sees_the_network(admin_client):
    weak, well = (
        add_session(
            reference=f"BBB-0{health}", health=health, outcome="recovered", gap_ms=400.0,
            noticed=True, interrupted_at=timezone.now(), level="economy", variant="blue",
        )
        for health in (20, 90)
    )  # fmt: skip
    url = reverse("admin:streaming_interruptedsession_changelist")
    for band, found in (("weak", [weak]), ("good", [well]), ("fair", [])):
        answer = admin_client.get(url, {"network": band})
        assert list(answer.context["cl"].result_list) == found
    assert admin_client.get(url).content.decode().count("weak network") == 1
    page = reverse("admin:streaming_streamsession_change", args=[weak.pk])
    html = re.sub(r"</?bdi[^>]*>", "", admin_client.get(page).content.decode())
    assert "level economy, variant blue" in html
    assert "20 of 100 at the lowest (weak)" in html
