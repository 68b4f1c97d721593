"""Worker and gateway are killed in the middle of settlement: everything is settled once."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.db import connection, transaction
from django.utils import timezone

from billing.core import money
from billing.models import LedgerEntry, Settlement, UsageRecord
from billing.services import rebuild, verification
from streaming.models import Incident, OutboxMessage
from tests.billing.rows import Story, add_plan
from tests.billing.worker import Worker
from tests.stack import Stack

pytestmark = pytest.mark.django_db(transaction=True)

SESSIONS = 12
SECONDS = 90.0


def add_sessions(rng: random.Random) -> None:
    """Sessions of which more than one thing was announced, some of it twice."""
    for _ in range(SESSIONS):
        with transaction.atomic():  # the gateway would take over what has no owner
            add_session(rng)


def add_session(rng: random.Random) -> None:
    story = Story(prompt=rng.randrange(30), at=timezone.now() - timedelta(minutes=1))
    story.attempt("a")
    story.tokens(rng.randrange(1, 20))
    story.deliver(rng.randrange(story.log + 1))
    if rng.random() < 0.5:
        story.fail(discarded=rng.randrange(4))
        story.suspend()
        story.attempt("b", grade="exact")
        story.tokens(rng.randrange(1, 20))
    story.end(rng.choice(["completed", "cancelled", "failed"]))
    if rng.random() < 0.3:
        story.deliver(story.log, announce=True)
    if rng.random() < 0.3:
        story.announce("session_ended")


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def unsettled() -> int:
    return OutboxMessage.objects.filter(handled_at=None).count()


def kill_while_settling(stack: Stack, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    add_plan(cost="1")
    name = connection.settings_dict["NAME"]
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()
    env = {"DATABASE_URL": url, "DATABASE_DIRECT_URL": url}
    in_the_middle = 0
    with Worker(stack, **env) as worker:
        gateway = stack.start_gateway(**env)
        for number in range(kills):
            kills_worker = number % 2 == 0
            add_sessions(rng)
            settled = Settlement.objects.count()
            if kills_worker:
                worker.settle(5)
            # A gateway looks by itself, since nobody asks the worker to.
            until(lambda: Settlement.objects.count() > settled, "nobody settles")  # noqa: B023
            time.sleep(rng.uniform(0, 0.05))
            if kills_worker:
                worker.kill()
                in_the_middle += unsettled() > 0
                worker.start()
            else:
                gateway.kill()
                in_the_middle += unsettled() > 0
                gateway.start_again()
        worker.settle(20)
        until(lambda: unsettled() == 0, "something is never settled")
    assert in_the_middle > 0
    check(kills)


def check(kills: int) -> None:
    """Exactly one settlement per (session, n), one entry a settlement, and usage is their sum."""
    assert UsageRecord.objects.count() == SESSIONS * kills
    for usage in UsageRecord.objects.all():
        lines = list(Settlement.objects.filter(usage=usage).order_by("n"))
        assert [line.n for line in lines] == list(range(1, usage.settlements + 1))
        assert sum(line.output_tokens for line in lines) == usage.billed_tokens
        assert usage.billed_tokens == usage.delivered_tokens
        assert money.total(line.amount for line in lines) == usage.amount
    entries = LedgerEntry.objects.order_by("settlement").values_list("settlement", "amount")
    assert list(entries) == list(Settlement.objects.order_by("pk").values_list("pk", "amount"))
    assert not any(found.differences or found.waits for found in rebuild.compare())
    verdict = verification.verify()
    assert verdict.ok, verdict.broken
    assert not Incident.objects.filter(kind="settlement_failed").exists()


def test_whoever_is_killed_everything_is_settled_once(start_stack):
    kill_while_settling(start_stack(gateways=0), kills=8, seed=4)


@pytest.mark.soak
def test_whoever_is_killed_200_times_everything_is_settled_once(start_stack):
    kill_while_settling(start_stack(gateways=0), kills=200, seed=7)
