"""Sessions that really end, a worker that is really killed, and others beside each other."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import httpx
import pytest

from gateway_project.embedded.process import spawn
from streaming.models import WebhookDelivery
from tests.durability.reader import question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import ROOT, Stack
from tests.tasks.rows import run_together
from tests.webhooks.sending import ended, hook, run

WAIT = 60.0


def worker(stack: Stack, *arguments: str) -> subprocess.Popen[bytes]:
    """A worker with a beat of its own, as ``serve`` starts them."""
    celery = [sys.executable, "-m", "celery", "-A", "gateway_project.celery", "--quiet"]
    with (stack.directory / "celery.log").open("ab") as log:
        return spawn(
            [*celery, *arguments], env=stack.env(), cwd=ROOT, stdout=log, stderr=log,
            death_signal=signal.SIGKILL,
        )  # fmt: skip


async def test_a_worker_that_is_killed_while_it_sends_is_followed_by_the_same_message(
    start_stack, receiver
):
    with SimulatorProcess() as engine:
        stack = start_stack(
            engine_nodes=[f"a=vllm+{engine.url}"],
            env={"WEBHOOK_PRIVATE_ADDRESSES": "true", "NODE_WAIT_SECONDS": "0.5"},
        )
        key = stack.api_key()
        stack.sql(
            "INSERT INTO streaming_webhookendpoint (tenant_id, url, events, secret_version,"
            " is_active, created_at, disabled_reason) SELECT id, %s, '[]', 1, true, now(), ''"
            " FROM streaming_tenant",
            receiver.url,
        )
        receiver.hold = threading.Event()
        client = httpx.AsyncClient(
            base_url=stack.gateway().url, headers={"authorization": f"Bearer {key}"}, timeout=WAIT
        )
        async with client:
            body = {"model": "sim-model", "messages": question("Hello", 8)}
            whole = await client.post(
                "/v1/chat/completions", json=body, headers={"x-unbroken-user": "ann"}
            )
            assert whole.status_code == 200
            pace = ["worker", "--pool=solo", "--without-gossip", "--without-mingle"]
            beat = worker(stack, "beat", f"--schedule={stack.directory}/schedule", "--pidfile=")
            first = worker(stack, *pace)
            try:
                assert await asyncio.to_thread(receiver.arrived.acquire, timeout=WAIT)
            finally:
                first.kill()
                first.wait()
            receiver.hold.set()
            assert stack.sql("SELECT state, tries FROM streaming_webhookdelivery") == [
                ("waiting", 0)
            ]
            stack.sql("UPDATE streaming_webhookdelivery SET next_try_at = now()")
            engine.kill()
            lost = await client.post("/v1/chat/completions", json=body)
            assert lost.status_code == 503
            second = worker(stack, *pace)
            try:
                await until(
                    lambda: (
                        stack.sql(
                            "SELECT count(*) FROM streaming_webhookdelivery WHERE state = 'delivered'"
                        )
                        == [(2,)]
                    ),
                    WAIT,
                )
            finally:
                for process in (second, beat):
                    process.kill()
                    process.wait()
    messages = [one.json for one in receiver.received]
    ids = [one.headers["webhook-id"] for one in receiver.received]
    done = [number for number, one in enumerate(messages) if one["type"] == "session.completed"]
    assert len(done) == 2
    assert len({ids[number] for number in done}) == 1
    assert receiver.received[done[0]].body == receiver.received[done[1]].body
    data = messages[done[0]]["data"]
    assert (data["session_id"], data["user"]) == (whole.headers["x-session-id"], "ann")
    assert data["usage"] == {
        name: whole.json()["usage"][name]
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    (cut,) = [one for one in messages if one["type"] == "session.suspended"]
    assert (cut["data"]["state"], cut["data"]["error_code"]) == ("suspended", "no_healthy_node")
    assert cut["data"]["resume_until"] is not None
    assert whole.json()["choices"][0]["message"]["content"] not in str(messages)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("private", "patient")
def test_two_workers_send_nothing_twice(receiver):
    hook(receiver)
    for _ in range(30):
        ended()
    run_together(run, 3)
    while run() != (0, 0, 0):
        pass
    ids = [one.headers["webhook-id"] for one in receiver.received]
    assert len(ids) == len(set(ids)) == 30
    assert WebhookDelivery.objects.filter(state="delivered").count() == 30
