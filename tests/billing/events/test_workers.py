"""Workers that send beside each other, are killed, and look at certificates."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest
from django.db import connection
from django.db.models import F

from billing.models import EventDelivery, UsageSink
from billing.services import deliveries
from tests.billing.events.receiver import Receiver
from tests.billing.events.sending import hook, run, sooner
from tests.billing.lines import add_usage, settle
from tests.engine_simulator.certificates import Authority
from tests.stack import ROOT
from tests.tasks.rows import run_together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("private", "patient"),
]

_DELIVER = """
import django
django.setup()
from billing.services import deliveries
deliveries.START_SECONDS = deliveries.ANSWER_SECONDS = 30.0
print("delivered", deliveries.deliver_usage_events()["delivered"])
"""


def deliverer(**env: str) -> subprocess.Popen[str]:
    """A process that runs the task once on the database of this test."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    return subprocess.Popen(
        [sys.executable, "-c", _DELIVER],
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "gateway_project.settings",
            "DATABASE_URL": parts._replace(path=connection.settings_dict["NAME"]).geturl(),
            "WEBHOOK_PRIVATE_ADDRESSES": "true",
            **env,
        },
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_worker_that_is_killed_while_it_sends_is_followed_by_the_same_event(receiver):
    hook(receiver)
    usage = add_usage()
    settle(usage)
    receiver.hold = threading.Event()
    process = deliverer()
    assert receiver.arrived.acquire(timeout=60)
    process.kill()
    process.communicate()
    receiver.hold.set()
    delivery = EventDelivery.objects.get()
    assert (delivery.state, delivery.tries) == ("pending", 0)
    assert run() == (0, 0, 0)  # it is claimed still
    EventDelivery.objects.update(next_at=F("next_at") - deliveries.CLAIM)
    assert run() == (1, 0, 0)
    assert receiver.ids == [f"{usage.pk}:1"] * 2
    assert receiver.received[0].body == receiver.received[1].body


def test_a_certificate_must_be_of_the_host_and_of_somebody_known(tmp_path):
    authority = Authority(tmp_path)
    with Receiver(certificate=authority.sign("server", "localhost")) as receiver:
        sink = hook(receiver, url=f"https://localhost:{receiver.port}/")
        settle(add_usage())
        assert run() == (0, 1, 0)
        assert "certificate" in EventDelivery.objects.get().answered.lower()
        sooner()
        said, _ = deliverer(SSL_CERT_FILE=str(authority.path)).communicate(timeout=60)
        assert said == "delivered 1\n"
        assert receiver.received[0].headers["host"] == f"localhost:{receiver.port}"
        settle(add_usage())
        UsageSink.objects.filter(pk=sink.pk).update(url=f"https://127.0.0.1:{receiver.port}/")
        said, _ = deliverer(SSL_CERT_FILE=str(authority.path)).communicate(timeout=60)
        assert said == "delivered 0\n"  # that is not its name


def test_two_workers_send_nothing_twice(receiver):
    hook(receiver)
    for _ in range(40):
        settle(add_usage())
    run_together(run, 3)
    while run() != (0, 0, 0):
        pass
    assert len(receiver.ids) == len(set(receiver.ids)) == 40
