"""Who may read ``/metrics``."""

from __future__ import annotations

import socket

import httpx
import pytest

from streaming.checks import check_metrics_token
from streaming.conf import StreamingConf
from tests.metrics.scrape import scrape
from tests.stack import Stack

TOKEN = "correct horse battery staple"


def test_with_a_token(start_stack) -> None:
    stack: Stack = start_stack(env={"METRICS_TOKEN": TOKEN})
    url = stack.gateway().url
    assert scrape(url, authorization=f"Bearer {TOKEN}").families
    assert scrape(url, authorization=f"bearer  {TOKEN}").families
    for wrong in (
        "",
        "Bearer",
        "Bearer wrong",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        TOKEN,
        "Bearer \xfc",
    ):
        answer = httpx.get(url + "/metrics", headers={b"authorization": wrong.encode()})
        assert answer.status_code == 401, wrong
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "METRICS_TOKEN" in answer.text
        assert "sse_connections_active" not in answer.text


def test_without_a_token_only_this_machine(start_stack) -> None:
    stack: Stack = start_stack(gateways=0)
    address = _own_address()
    gateway = stack.start_gateway(host="0.0.0.0", ALLOWED_HOSTS="*")
    assert scrape(gateway.url).families
    assert scrape(gateway.url, host="localhost").families
    # A proxy on this machine asks for others.
    for headers in ({"host": "chat.example.com"}, {"via": "1.1 proxy"}, {"x-real-ip": "10.1.2.3"}):
        answer = httpx.get(gateway.url + "/metrics", headers=headers)
        assert answer.status_code == 403, headers
        assert "METRICS_TOKEN" in answer.text
    if address is not None:
        answer = httpx.get(
            f"http://{address}:{gateway.port}/metrics", headers={"host": "localhost"}
        )
        assert answer.status_code == 403


def test_the_formats(start_stack) -> None:
    url = start_stack().gateway().url + "/metrics"
    plain = httpx.get(url)
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert plain.headers["cache-control"] == "no-store"
    wanted = "application/openmetrics-text; version=1.0.0"
    modern = httpx.get(url, headers={"accept": wanted})
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")
    assert httpx.head(url).status_code == 200
    assert httpx.post(url).status_code == 405


@pytest.mark.parametrize(
    ("token", "hosts", "ids"),
    [
        ("", ["localhost", "127.0.0.1"], []),
        ("", ["chat.example.com"], ["streaming.W010"]),
        (TOKEN, ["chat.example.com"], []),
        (f"{TOKEN}, {TOKEN[::-1]}", ["chat.example.com"], []),
        ("short", ["localhost"], []),
        # What is left of a token with a comma in it.
        (f"{TOKEN},4711", ["localhost"], ["streaming.W012"]),
        (",", ["localhost"], ["streaming.E012"]),
        (f"{TOKEN},", ["localhost"], ["streaming.E012"]),
        (f"{TOKEN}\nx", ["localhost"], ["streaming.E012"]),
        ("gehe\xefm", ["localhost"], ["streaming.E012"]),
    ],
)
def test_the_check(settings, token: str, hosts: list[str], ids: list[str]) -> None:
    settings.STREAMING = StreamingConf(metrics_token=token)
    settings.ALLOWED_HOSTS = hosts
    assert [message.id for message in check_metrics_token(None)] == ids


def _own_address() -> str | None:
    """An address of this machine that is not loopback, if it has one."""
    found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    return next(
        (str(entry[4][0]) for entry in found if not str(entry[4][0]).startswith("127.")), None
    )
