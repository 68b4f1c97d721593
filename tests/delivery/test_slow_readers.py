"""Readers that do not read, read slowly, or have vanished."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.delivery.conftest import PACE, House
from tests.delivery.story import Door, Story, outcome, state_of
from tests.durability.reader import question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Gateway, Stack

READERS = 200
PER_READER = 64 * 1024


def stuck_reader(gateway: Gateway, key: str, session_id: str, cursor: int = 0) -> socket.socket:
    """A client with a small receive buffer that asks and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", gateway.port))
    client.sendall(
        f"GET /v1/sessions/{session_id}/events HTTP/1.1\r\nHost: test\r\n"
        f"Last-Event-ID: {cursor}\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    )
    return client


def memory(gateway: Gateway) -> int:
    return psutil.Process(gateway.pid).memory_info().rss


async def settled(gateway: Gateway) -> None:
    """The process has nothing to do: its CPU time stands nearly still."""
    process = psutil.Process(gateway.pid)
    async with asyncio.timeout(20):
        while True:
            before = sum(process.cpu_times()[:2])
            await asyncio.sleep(0.2)
            if sum(process.cpu_times()[:2]) - before <= 0.05:
                return


@pytest.fixture(scope="module")
def fast() -> Iterator[House]:
    """Its engine says 2000 tokens a second."""
    with (
        SimulatorProcess("vllm", pace=2000, max_model_len=100_000) as engine,
        Stack(
            engine_nodes=[f"a=vllm+{engine.url}"],
            env={"GRACE_SECONDS": "0.5", "MAX_LEAD": "1000", "DATABASE_POOL_SIZE": "8"},
        ) as stack,
    ):
        yield House(stack, engine)


@pytest.mark.parametrize("finished", [False, True], ids=["live", "replay"])
async def test_readers_that_never_read(fast: House, finished: bool) -> None:
    gateway = fast.stack.gateway()
    async with Door(fast.stack.api_key(on_disconnect="finish")) as door:
        tokens = 12_000 if finished else 6_000
        long = await door.create(gateway.url, question(f"long {finished}", tokens))
        if finished:
            await until(lambda: state_of(fast.stack, long)[0] == "completed", 30)
        # What the process needs for the answer and the first readers it keeps for good.
        stuck = [stuck_reader(gateway, door.key, long.session_id) for _ in range(READERS // 4)]
        await until(lambda: state_of(fast.stack, long)[0] == "completed", 60)
        await settled(gateway)
        before = memory(gateway)
        if not finished:
            long = await door.create(gateway.url, question("long, too", tokens))
        stuck += [stuck_reader(gateway, door.key, long.session_id) for _ in range(READERS)]
        await until(lambda: state_of(fast.stack, long)[0] == "completed", 60)
        await settled(gateway)
        grown = (memory(gateway) - before) / READERS
        print(f"{grown / 1024:.0f} KiB resident for each reader that never reads")
        assert grown < PER_READER

        # Another stream keeps its pace.
        other = await door.create(gateway.url, question("other", 2000))
        began = time.monotonic()
        await door.read(gateway.url, other)
        took = time.monotonic() - began
        gaps = [b - a for a, b in zip(other.token_times, other.token_times[1:], strict=False)]
        print(f"another stream: {took:.2f} s for 1 s of tokens, longest gap {max(gaps):.3f} s")
        assert other.is_whole
        assert took < 2.5
        for client in stuck:
            client.close()
        await until(lambda: connections(gateway) <= 1, 5)


def connections(gateway: Gateway) -> int:
    return sum(
        1
        for connection in psutil.Process(gateway.pid).net_connections("tcp")
        if connection.laddr.port == gateway.port and connection.status == "ESTABLISHED"
    )


async def test_slow_reader_is_caught_up_from_the_log(fast: House) -> None:
    """It reads a fifth of what is said, is left far behind what memory holds, and gets all of it."""
    gateway = fast.stack.gateway()
    async with Door(fast.stack.api_key(on_disconnect="finish")) as door:
        story = await door.create(gateway.url, question("slow", 6000))
        with stuck_reader(gateway, door.key, story.session_id) as client:
            await until(lambda: state_of(fast.stack, story)[0] == "completed", 30)
            await asyncio.to_thread(drain, client, story)
        assert story.is_whole


def drain(client: socket.socket, story: Story) -> None:
    """Read the rest of a chunked response into the story, in small bites."""
    client.settimeout(10)
    file = client.makefile("rb", buffering=1024)
    while file.readline().strip():
        pass
    buffer = b""
    while size := int(file.readline(), 16):
        buffer += file.read(size)
        file.readline()
        *events, buffer = buffer.split(b"\n\n")
        for event in events:
            story.take(event)
    assert not buffer


async def test_stuck_reader_counts_as_absent_past_max_lead(fast: House) -> None:
    gateway = fast.stack.gateway()
    async with Door(fast.stack.api_key()) as door:
        story = await door.create(gateway.url, question("stuck", 12_000))
        with stuck_reader(gateway, door.key, story.session_id) as client:
            await until(lambda: state_of(fast.stack, story) == ("suspended", "client_gone"), 20)
            assert fast.running == 0
            stored = outcome(fast.stack, story)
            print(f"suspended at token {stored.durable_seq}, delivered {stored.delivered_seq}")
            assert stored.delivered_seq < stored.durable_seq < 11_500
            # It drains: the answer is continued for it, and whole.
            await asyncio.to_thread(drain, client, story)
        assert story.is_whole
        assert outcome(fast.stack, story).state == "completed"


# Vanished


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def cable() -> Iterator[tuple[str, str, str]]:
    """A namespace at the end of a cable: our address on it, its name, its end of the cable."""
    number = os.getpid() % 250
    name = f"unbroken{number}"
    outside, inside = f"ub{number}a", f"ub{number}b"
    try:
        for command in (
            f"ip netns add {name}",
            f"ip link add {outside} type veth peer name {inside} netns {name}",
            f"ip addr add 10.231.{number}.1/30 dev {outside}",
            f"ip link set {outside} up",
            f"ip -n {name} addr add 10.231.{number}.2/30 dev {inside}",
            f"ip -n {name} link set {inside} up",
        ):
            run(*command.split())
        yield f"10.231.{number}.1", name, inside
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", outside], check=False, capture_output=True)


def can_have_namespaces() -> bool:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    done = subprocess.run(["ip", "netns", "add", "ubprobe"], check=False, capture_output=True)
    subprocess.run(["ip", "netns", "del", "ubprobe"], check=False, capture_output=True)
    return done.returncode == 0


CLIENT = """
import socket, sys, time
host, port, session, key, reads = sys.argv[1:]
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
client.connect((host, int(port)))
client.sendall(
    f"GET /v1/sessions/{session}/events HTTP/1.1\\r\\nHost: test\\r\\n"
    f"Authorization: Bearer {key}\\r\\n\\r\\n".encode()
)
print("READY", flush=True)
while reads == "reads":
    if not client.recv(65536):
        break
time.sleep(120)
"""


@pytest.mark.skipif(not can_have_namespaces(), reason="needs root and network namespaces")
async def test_vanished_reader_is_cut_and_slow_one_is_not() -> None:
    """The cable of one reader is pulled; another one has a window of zero all the time."""
    with (
        cable() as (address, namespace, end),
        SimulatorProcess("vllm", pace=PACE) as engine,
        Stack(
            gateways=0,
            engine_nodes=[f"a=vllm+{engine.url}"],
            env={"GRACE_SECONDS": "2", "VANISHED_SECONDS": "8", "MAX_LEAD": "1000000"},
        ) as stack,
    ):
        gateway = stack.start_gateway(host="0.0.0.0")
        async with Door(stack.api_key()) as door:
            vanishing = await door.create(gateway.url, question("vanishing", 6000))
            slow = await door.create(gateway.url, question("slow", 6000))
            clients = [
                await asyncio.create_subprocess_exec(
                    *("ip", "netns", "exec", namespace, sys.executable, "-c", CLIENT),
                    *(address, str(gateway.port), vanishing.session_id, door.key, "reads"),
                    stdout=subprocess.PIPE,
                ),
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", CLIENT),
                    *("127.0.0.1", str(gateway.port), slow.session_id, door.key, "stuck"),
                    stdout=subprocess.PIPE,
                ),
            ]
            try:
                for client in clients:
                    assert client.stdout is not None
                    assert await client.stdout.readline() == b"READY\n"
                await asyncio.sleep(1.5)
                pulled = time.monotonic()
                # Its address goes, not the link: nobody is told, packets just get lost.
                run("ip", "-n", namespace, "addr", "flush", "dev", end)
                await until(lambda: state_of(stack, vanishing)[0] == "suspended", 20)
                noticed = time.monotonic() - pulled
                print(f"noticed {noticed - 2:.1f} s after its last acknowledgement")
                assert 8 < noticed < 8 + 2 + 2 + 1.5
                delivered = outcome(stack, vanishing).delivered_seq
                assert delivered <= 2.5 * PACE
                await asyncio.sleep(2)
                assert state_of(stack, slow)[0] == "streaming"
                assert gateway.log.count("vanished") == 1
                left = stack.sql(
                    "SELECT data ->> 'how' FROM streaming_sessionevent WHERE session_id = %s"
                    " AND kind = 'reader_left'",
                    vanishing.session_id,
                )
                assert left == [("timed_out",)]
                assert connections(gateway) >= 1
            finally:
                for client in clients:
                    with contextlib.suppress(ProcessLookupError):
                        client.kill()
                    await client.wait()


# The heartbeat


@pytest.mark.parametrize(
    ("query", "header", "seconds"),
    [("?heartbeat=1", "", 1.0), ("", "1.5", 1.5), ("?heartbeat=30", "", 30.0), ("", "", 8.0)],
)
async def test_heartbeat_interval(
    house: House, door: Door, query: str, header: str, seconds: float
) -> None:
    house.engine.set_fault(kind="freeze", at_token=3, match="heartbeat", arg=3.5)
    story = await door.create(house.url, question("heartbeat", 5))
    headers = {"x-unbroken-heartbeat": header} if header else {}
    began = time.monotonic()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3.2):
            await door.read(house.url, story, query=query, headers=headers)
    assert story.openings[0]["heartbeat_seconds"] == seconds
    times = [at - began for at, comment in story.comments if comment == b":keepalive"]
    assert len(times) == int(3.1 / seconds)
    assert all(abs(at - seconds * n) < 0.5 for n, at in enumerate(times, 1)), times
    await door.stop(house.url, story)


@pytest.mark.parametrize("wish", ["0", "0.99", "30.1", "-3", "nan", "inf", "soon"])
async def test_heartbeat_out_of_range(house: House, door: Door, wish: str) -> None:
    story = await door.create(house.url, question("wish", 5))
    url = f"{house.url}/v1/sessions/{story.session_id}/events"
    for query, headers in ((f"?heartbeat={wish}", {}), ("", {"x-unbroken-heartbeat": wish})):
        async with door.http.get(url + query, headers=headers) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "heartbeat"
