"""What the support desk has done by now with made-up sessions."""

from __future__ import annotations

import random
from datetime import timedelta

from django.utils import timezone

from gateway_project.demo.fleet import PREFIX
from streaming.core.outcome import Review
from streaming.models import StreamSession
from streaming.services.reviews import mark_reviewed

SHARE = 0.6
"""Of what is older than a day, so much was looked into."""
MOST = 100
_NOTES = (
    "Customer was told what happened; satisfied.",
    "The gap was short; nobody had called.",
    "Node was drained and its memory tested; back since.",
    "Known trouble of that engine version, see the ticket.",
    "Offered to ask again; the credit is with finance.",
)


def review(chance: random.Random, *, by: str) -> int:
    """Have some of those that wait for it reviewed; how many. ``by``: the actor."""
    yesterday = timezone.now() - timedelta(days=1)
    waiting = StreamSession.objects.filter(
        review=Review.NEEDED.value, interrupted_at__lt=yesterday, tenant__name__startswith=PREFIX
    ).order_by("pk")
    done = 0
    for session_id in waiting.values_list("pk", flat=True)[:MOST]:
        if chance.random() < SHARE:
            ticket = f"SUP-{chance.randrange(1000, 9999)}"
            mark_reviewed(session_id, note=chance.choice(_NOTES), ticket=ticket, by=by)
            done += 1
    return done
