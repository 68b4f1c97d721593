"""What the kernel does for us on connections to engines, and what it tells."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import sys
import time

import pytest

from streaming.core.failures import AttemptFailed, Cause
from streaming.core.nodes import NodeOptions
from streaming.engines.http import engine_client
from streaming.engines.registry import dialect_for
from streaming.engines.sockets import Watch, error_facts, set_options
from tests.durability.reader import until
from tests.engines.client import LONG, Asking, generation

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO")
BOTH = pytest.mark.parametrize("name", ["vllm", "llamacpp"])


def asked(**fields: object):
    return generation(LONG, **{"model": "sim-model", "max_tokens": 900, **fields})


async def read(stream) -> None:
    async for _ in stream:
        pass


def test_a_vanished_peer_is_given_up_after_the_silence_that_is_tolerated():
    with socket.socket() as sock:
        set_options(sock, 30.0)
        tcp = {
            name: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        }
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert tcp["TCP_USER_TIMEOUT"] == 30_000
    assert tcp["TCP_KEEPIDLE"] + tcp["TCP_KEEPINTVL"] * tcp["TCP_KEEPCNT"] == 30


@BOTH
async def test_every_connection_to_an_engine_has_the_options(start, client, name):
    engine, dialect = start(name, pace=100)
    await client.keep_spares(engine.url, 1)
    attempt = asked()
    stream = dialect.generate(attempt)
    await anext(stream)
    sock = attempt.watch._socket()
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await stream.aclose()


@BOTH
async def test_facts_of_a_connection_while_it_lives_and_after(start, name):
    engine, dialect = start(name, pace=100)
    attempt = asked()
    assert attempt.watch.facts() == {}
    stream = dialect.generate(attempt)
    await anext(stream)
    facts = attempt.watch.facts()
    assert (facts["state"], facts["unacked"], facts["probes"]) == ("established", 0, 0)
    engine.stop()
    await until(lambda: attempt.watch.facts()["last_data_recv"] > 200)
    assert attempt.watch.facts()["state"] == "established"  # its kernel is well
    await stream.aclose()
    assert attempt.watch.facts()["last_data_recv"] > 200


@BOTH
@pytest.mark.parametrize(
    ("fault", "cause", "evidence"),
    [
        ("reset", Cause.RESET, {"state": "close", "errno": "ECONNRESET"}),
        ("close", Cause.CLOSED, {"state": "close_wait"}),
    ],
)
async def test_a_failure_tells_how_the_connection_ended(start, name, fault, cause, evidence):
    engine, dialect = start(name, pace=100)
    engine.set_fault(kind=fault, at_token=5)
    with pytest.raises(AttemptFailed) as caught:
        await read(dialect.generate(asked()))
    assert caught.value.cause is cause
    assert evidence.items() <= caught.value.evidence.items()
    assert {"last_data_recv", "unacked", "retransmits"} <= caught.value.evidence.keys()


@BOTH
async def test_a_failure_in_words_leaves_the_connection_as_evidence(start, name):
    engine, dialect = start(name, pace=100)
    engine.set_fault(kind="error_done", at_token=5)
    with pytest.raises(AttemptFailed) as caught:
        await read(dialect.generate(asked()))
    assert caught.value.cause is Cause.ENGINE_ERROR
    assert caught.value.evidence["state"] in ("established", "close_wait")


async def test_nobody_listens(start):
    engine, dialect = start("vllm")
    engine.close()
    with pytest.raises(AttemptFailed) as caught:
        await read(dialect.generate(asked()))
    assert (caught.value.cause, caught.value.evidence) == (
        Cause.REFUSED,
        {"errno": "ECONNREFUSED"},
    )


def test_errors_are_named_by_what_caused_them():
    error = RuntimeError("outer")
    error.__cause__ = ConnectionResetError(104, "gone")
    assert error_facts(error) == {"errno": "ECONNRESET"}
    assert error_facts(RuntimeError()) == {}


@pytest.fixture
async def impatient(settings):
    settings.STREAMING = dataclasses.replace(
        settings.STREAMING, engine_silence=0.4, first_token_timeout=0.4
    )
    client = engine_client()
    yield client
    await client.aclose()


@BOTH
async def test_silence_is_cut_though_nobody_above_noticed(start, impatient, name):
    engine, _ = start(name, pace=100)
    engine.set_fault(kind="freeze", at_token=20)
    dialect = dialect_for(name, impatient, engine.url, NodeOptions())
    async with asyncio.timeout(10):
        with pytest.raises(AttemptFailed, match="the connection is cut") as caught:
            await read(dialect.generate(asked()))
    assert caught.value.cause is Cause.STALLED
    assert caught.value.evidence["last_data_recv"] >= 400
    await until(lambda: engine.stats()["running"] == 0)


@BOTH
async def test_silence_before_the_first_token_is_cut_later(start, impatient, name):
    engine, _ = start(name)
    engine.set_fault(kind="freeze_engine")
    dialect = dialect_for(name, impatient, engine.url, NodeOptions())
    began = time.monotonic()
    async with asyncio.timeout(10):
        with pytest.raises(AttemptFailed) as caught:
            await read(dialect.generate(asked()))
    assert caught.value.cause is Cause.STALLED
    assert time.monotonic() - began >= 0.8
    await until(lambda: engine.stats()["waiting"] == 0)


async def test_comments_are_bytes_too(start, impatient):
    """The socket's timer is the last one; that a stream brings no tokens others notice first."""
    engine, _ = start("vllm", sse_keep_alive=0.1)
    engine.set_fault(kind="freeze", at_token=5, arg=1.5)
    dialect = dialect_for("vllm", impatient, engine.url, NodeOptions())
    with pytest.raises(AttemptFailed) as caught:
        await read(dialect.generate(asked()))
    assert caught.value.cause is Cause.CLOSED


async def test_an_old_connection_with_a_new_request_is_not_silent(start, impatient):
    engine, _ = start("vllm", pace=50)
    dialect = dialect_for("vllm", impatient, engine.url, NodeOptions())
    await impatient.keep_spares(engine.url, 1)
    await asyncio.sleep(0.6)  # older than the silence that is tolerated
    engine.set_fault(kind="slow", arg=0.2)
    stream = dialect.generate(asked(max_tokens=4))
    await read(stream)


async def test_a_stream_that_brings_tokens_is_left_alone(start, impatient):
    engine, _ = start("vllm", pace=20)
    dialect = dialect_for("vllm", impatient, engine.url, NodeOptions())
    async with Asking(dialect) as task:
        await asyncio.sleep(1.0)
        assert not task.done()


def test_a_watch_of_nothing_has_nothing_to_say():
    watch = Watch()
    watch.check()
    watch.note_end(None)
    assert (watch.facts(), repr(watch)) == ({}, "<Watch {}>")
