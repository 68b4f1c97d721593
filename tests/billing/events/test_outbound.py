"""Where requests to customers' addresses may lead, and where they may not."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from typing import Any

import pytest

from streaming.services.outbound import (
    AddressRefused,
    Answer,
    Unanswered,
    check_url,
    is_public,
    outbound,
    post,
)
from tests.billing.events.receiver import Receiver

PUBLIC = [
    "93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808",
    "2002:808:808::1",
]  # fmt: skip
PRIVATE = [
    "0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.9.9.9", "169.254.169.254", "172.16.0.1",
    "192.0.2.1", "192.168.1.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1",
    "::ffff:169.254.169.254", "2002:7f00:1::", "64:ff9b::7f00:1", "2001:0:4136:e378:8000:63bf:f5ff:fffe",
    "::127.0.0.1", "::10.0.0.1", "::8.8.8.8", "64:ff9b::10.0.0.1", "64:ff9b:1::7f00:1",
    "64:ff9b:1:a00:0:100::", "64:ff9b:1::808:808", "fec0::1", "feff::1", "2002:a00:1::1",
    "2002:c0a8:101::1", "2001:0:a00:1:8000:63bf:f7f7:f7f7", "2001:0:808:808:8000:63bf:80ff:fffe",
]  # fmt: skip


async def send(url: str, seconds: float = 30.0) -> Answer:
    async with outbound() as client:
        return await post(client, url, {}, b"{}", seconds)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address):
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not(address):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "http://hook.example/",
        "ftp://hook.example/",
        "file:///etc/passwd",
        "https://",
        "https:///path",
        "https://user:secret@hook.example/",
        "https://hook.example:port/",
        "https://[::1/",
        "https://127.0.0.1/",
        "https://[::1]:8443/",
        "https://169.254.169.254/latest/meta-data",
        "https://hook.example:0/",
        "https://localhost/",
        "https://LOCALHOST.:8443/",
        "https://hooks.localhost/",
        "https://printer.local/",
        "https://metadata.google.internal./",
        "hook.example",
        "",
    ],
)
def test_urls_that_are_refused_whatever_they_lead_to(url):
    with pytest.raises(AddressRefused):
        check_url(url)


def test_urls_that_pass():
    check_url("https://hook.example/in?a=b")
    check_url("https://8.8.8.8:8443/")
    check_url("https://localhost.example/")


@pytest.mark.usefixtures("private")
def test_private_addresses_where_they_are_allowed():
    check_url("http://127.0.0.1:8000/")
    check_url("https://10.0.0.1/")
    check_url("http://hooks.internal/")
    check_url("http://[::1]:8000/")
    with pytest.raises(AddressRefused):
        check_url("http://10.0.0.1:0/")
    with pytest.raises(AddressRefused):
        check_url("ftp://10.0.0.1/")


METADATA = [
    "169.254.169.254", "169.254.170.2", "fe80::1", "fe80::1%eth0", "fd00:ec2::254",
    "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1",
    "::169.254.169.254", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::",
    "2001:0:808:808:8000:63bf:5601:5601",
]  # fmt: skip


@pytest.mark.usefixtures("private")
@pytest.mark.parametrize("address", METADATA)
async def test_the_cloud_s_own_services_are_refused_even_there(monkeypatch, address):
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(AddressRefused):
        check_url(f"http://{host}/latest/meta-data")
    resolver(monkeypatch, ["10.0.0.1", address])
    with pytest.raises((AddressRefused, Unanswered), match="allowed addresses only"):
        await send("http://metadata.example/")


@pytest.mark.parametrize(
    "host", ["localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost."]
)
async def test_a_name_that_leads_to_this_machine_is_not_connected_to(host):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        with pytest.raises((AddressRefused, Unanswered)):
            await send(f"https://{host}:{server.getsockname()[1]}/")
        with pytest.raises(BlockingIOError):  # nobody has knocked
            server.accept()


def resolver(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """What the system's resolver says, one answer after the other; the names it was asked for."""
    asked: list[str] = []
    waiting = list(answers)

    def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
        asked.append(host)
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "",
                (address, port),
            )
            for address in waiting.pop(0)
        ]  # fmt: skip

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["::ffff:10.0.0.1"]]
)
async def test_one_private_address_of_a_name_is_enough(monkeypatch, addresses):
    resolver(monkeypatch, addresses)
    with pytest.raises(AddressRefused, match=r"hook\.example does not lead to public") as refused:
        await send("https://hook.example/")
    assert not any(address in str(refused.value) for address in addresses)


@pytest.mark.usefixtures("private")
async def test_a_name_is_resolved_once_and_that_is_where_it_goes(receiver, monkeypatch):
    asked = resolver(monkeypatch, ["127.0.0.1"])  # a second question would find no answer
    answer = await send(f"http://hook.example:{receiver.port}/in")
    assert answer.status == 200
    assert asked == ["hook.example"]
    assert receiver.received[0].headers["host"] == f"hook.example:{receiver.port}"


async def test_a_name_that_does_not_exist():
    with pytest.raises(Unanswered):
        await send("https://no-such-name.invalid/")


def test_a_resolver_that_hangs_holds_nobody(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: release.wait())
    with pytest.raises(Unanswered, match=r"within 0\.2 s"):
        asyncio.run(send("https://hook.example/", 0.2))
    release.set()


@pytest.mark.usefixtures("private")
async def test_only_the_beginning_of_an_answer_is_read(receiver):
    receiver.answer(200, "x" * 10_000_000, retry_after="later")
    answer = await send(receiver.url)
    assert answer == Answer(200, "x" * 300, None)


@pytest.mark.usefixtures("private")
async def test_redirects_and_proxies_are_not_followed(receiver, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with Receiver() as elsewhere:
        receiver.answer(307, location=elsewhere.url)
        assert (await send(receiver.url)).status == 307
        assert not elsewhere.received


@pytest.mark.usefixtures("private")
async def test_an_answer_that_never_ends_is_left(receiver):
    receiver.hold = threading.Event()
    began = time.monotonic()
    with pytest.raises(Unanswered):
        await send(receiver.url, 0.2)
    assert time.monotonic() - began < 20


@pytest.mark.usefixtures("private")
async def test_what_is_no_http_is_no_answer():
    server = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        connection, _ = server.accept()
        connection.sendall(b"220 smtp.example ESMTP\r\n")
        connection.close()

    thread = threading.Thread(target=talk)
    thread.start()
    with pytest.raises(Unanswered):
        await send(f"http://127.0.0.1:{server.getsockname()[1]}/")
    thread.join()
    server.close()
