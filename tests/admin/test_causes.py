"""Causes and their evidence, as people read them."""

from __future__ import annotations

import pytest
from django.urls import reverse

from streaming.admin.evidence import in_words
from streaming.core.attribution import Evidence, Probe, attribute
from streaming.core.failures import Cause
from streaming.models import Attempt
from tests.admin.rows import SCRIPT, add_session


def test_evidence_in_words():
    _, evidence = attribute(
        Evidence(
            seen=Cause.RESET, siblings_failed=4, siblings_alive=0, probe=Probe.REFUSED, probe_after=1.04
        )
    )  # fmt: skip
    assert in_words(evidence) == (
        "Its host answers, and nobody listens at its port any more. (seen: connection reset;"
        " 4 more of its streams failed in that moment; none lived on; a probe was refused;"
        " judged 1.0 s later)"
    )


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ({}, "-"),
        ({"because": "So it is."}, "So it is."),
        ({"gateway": 7, "hostname": "here"}, "(gateway: 7; hostname: here)"),
        ({"silence": "long", "xids": 3}, "(silence: long; xids: 3)"),
        ({"memory_used": 0.973, "xids": [48, 94]}, "(Xid 48, 94; 97% of its GPU memory in use)"),
    ],
)
def test_any_row_is_shown_as_far_as_it_can_be(evidence, words):
    assert in_words(evidence) == words


@pytest.mark.django_db
def test_a_session_s_page_shows_why_each_attempt_ended(admin_client):
    evidence = {
        "because": "Its GPU reports memory errors.",
        "seen": "stalled",
        "ecc_errors": 2,
        "said": SCRIPT,
    }
    session = add_session(state="failed", cause="engine_ecc", evidence=evidence)
    Attempt.objects.filter(session=session, number=1).update(cause="engine_ecc", evidence=evidence)
    for model, pk in (
        ("streamsession", session.pk),
        ("attempt", session.attempts.get(number=1).pk),
    ):
        html = admin_client.get(
            reverse(f"admin:streaming_{model}_change", args=[pk])
        ).content.decode()
        assert "engine_ecc" in html
        assert "Its GPU reports memory errors. (seen: stalled; " in html
        assert "2 uncorrectable memory errors" in html
        assert SCRIPT not in html


@pytest.mark.django_db
def test_attempts_are_filtered_by_cause(admin_client):
    session = add_session()
    session.attempts.update(cause="engine_ecc")
    url = reverse("admin:streaming_attempt_changelist")
    for cause, found in (("engine_ecc", True), ("engine_oom", False)):
        html = admin_client.get(url, {"cause": cause}).content.decode()
        assert (str(session.pk) in html) is found
