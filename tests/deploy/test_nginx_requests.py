"""What nginx lets through, what it says of the client, what it refuses, and what it writes down."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
import pytest

from streaming.conf import StreamingConf
from tests.deploy.conftest import House, open_directory
from tests.deploy.nginx import Nginx
from tests.durability.reader import question, until
from tests.server import harness

LIMIT = StreamingConf().max_body_bytes
FORGED = {
    "X-Forwarded-For": "198.51.100.1",
    "X-Forwarded-Proto": "http",
    "X-Forwarded-Host": "evil.example",
    "X-Forwarded-Port": "1",
    "X-Real-IP": "198.51.100.1",
    "Forwarded": "for=198.51.100.1",
    "Daphne-Root-Path": "/elsewhere",
    "Upgrade": "h2c",
    "Connection": "Upgrade, HTTP2-Settings",
    "HTTP2-Settings": "AAMAAABkAAQAAP__",
}


@dataclass
class Mirror:
    """nginx before our server with an application that says what it was asked."""

    nginx: Nginx
    http: aiohttp.ClientSession
    is_trusted: bool

    async def look(self, **headers: str) -> dict[str, Any]:
        async with self.http.get(f"{self.nginx.url}/echo/1?x=1", headers=headers) as response:
            assert response.status == 200, await response.text()
            return await response.json()


@pytest.fixture(scope="module")
def _mirror() -> Iterator[Nginx]:
    with open_directory() as directory:
        server = harness.start(directory / "log", TRUSTED_PROXIES="127.0.0.1")
        with Nginx(directory, [server.port]) as nginx:
            yield nginx
        harness.stop(server)


@pytest.fixture(params=["127.0.0.1", "127.0.0.2"], ids=["from a proxy", "from anybody"])
async def mirror(_mirror: Nginx, request: pytest.FixtureRequest) -> AsyncIterator[Mirror]:
    """Asked from an address that is trusted as shipped, and from one that is not."""
    connector = aiohttp.TCPConnector(ssl=_mirror.tls(), local_addr=(request.param, 0))
    async with aiohttp.ClientSession(connector=connector) as http:
        yield Mirror(_mirror, http, request.param == "127.0.0.1")


async def test_the_gateway_learns_who_asks_from_nginx_alone(mirror: Mirror) -> None:
    seen = await mirror.look(**FORGED)
    headers = seen["headers"]
    client = "198.51.100.1" if mirror.is_trusted else "127.0.0.2"
    assert seen["client"] == client
    assert headers["x-forwarded-for"] == client
    assert headers["x-forwarded-proto"] == ("http" if mirror.is_trusted else "https")
    assert headers["host"] == f"127.0.0.1:{mirror.nginx.port}", "with its port, for Origin"
    assert seen["root_path"] == ""
    dropped = {"x-forwarded-host", "x-forwarded-port", "x-real-ip", "forwarded", "daphne-root-path"}
    assert not headers.keys() & {*dropped, "upgrade", "connection"}


async def test_what_stands_left_of_a_strangers_address_is_not_believed(mirror: Mirror) -> None:
    seen = await mirror.look(**{"X-Forwarded-For": "203.0.113.9, 198.51.100.1, 127.0.0.1"})
    assert seen["client"] == ("198.51.100.1" if mirror.is_trusted else "127.0.0.2")


async def test_one_request_id(mirror: Mirror) -> None:
    assert (await mirror.look(**{"X-Request-Id": "mine-1"}))["request_id"] == "mine-1"
    made = (await mirror.look(**{"X-Request-Id": 'no"good'}))["request_id"]
    assert made.isalnum()
    await until(lambda: made in mirror.nginx.log_text, 10)


async def test_the_gateway_knows_that_it_is_https(house: House) -> None:
    """Behind nginx, which ends TLS: secure cookies and the check of Origin depend on it."""
    async with (
        house.readers() as readers,
        readers.client.get("/v1/diagnostics/stream?seconds=0") as response,
    ):
        opening = (await response.content.readuntil(b"\n\n")).split(b"data: ", 1)[1]
    assert orjson.loads(opening)["scheme"] == "https"


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
async def test_too_large_a_body_is_refused_as_the_gateway_does(house: House, chunked: bool) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(LIMIT // 65536 + 1):
            yield b" " * 65536

    headers = {"authorization": f"Bearer {house.key}", "content-type": "application/json"}
    connector = aiohttp.TCPConnector(ssl=house.tls)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
        answers = []
        for url in (house.nginx.url, house.stack.gateway(0).url):
            data = body() if chunked else b" " * (LIMIT + 1)
            async with http.post(f"{url}/v1/chat/completions", data=data) as response:
                assert response.status == 413
                assert response.headers["content-type"].startswith("application/json")
                assert response.headers["x-request-id"]
                answers.append((await response.json())["error"])
        assert answers[0]["message"].startswith("The request body is larger")
        for answer in answers:
            del answer["message"]
        assert answers[0] == answers[1]
        # As much as may be is let through, to be found wanting by the gateway.
        async with http.post(
            f"{house.nginx.url}/v1/chat/completions", data=b" " * LIMIT
        ) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] == "invalid_request"


@pytest.mark.parametrize(
    "path", ["/admin/", "/admin/login/", "/billing/statements/1/", "/metrics", "/ws/admin/live/"]
)
async def test_what_is_not_public(house: House, path: str) -> None:
    async with house.readers() as readers:
        async with readers.client.get(
            path, headers={"X-Forwarded-For": "198.51.100.1"}
        ) as response:
            assert response.status == 403
            assert "nginx" in await response.text()
        async with readers.client.get(path, allow_redirects=False) as response:
            assert "nginx" not in await response.text(), "from this machine the gateway answers"


async def test_http_is_sent_to_https(house: House) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{house.nginx.plain_url}/v1/sessions?a=1", allow_redirects=False) as response,
    ):
        assert response.status == 308
        assert response.headers["location"] == "https://127.0.0.1/v1/sessions?a=1"


# --- files and logs -----------------------------------------------------------------------------


async def test_static_files_come_from_the_directory_or_the_gateway(house: House) -> None:
    async with house.readers() as readers:
        (house.nginx.directory / "static" / "streaming").mkdir(exist_ok=True)
        collected = house.nginx.directory / "static" / "streaming" / "widget.js"
        collected.unlink(missing_ok=True)
        answers = []
        for _ in range(2):
            async with readers.client.get("/static/streaming/widget.js") as response:
                assert response.status == 200
                answers.append((await response.text(), response.headers))
            collected.write_text(answers[0][0])
            collected.chmod(0o644)
            collected.parent.chmod(0o755)
        by_gateway, by_nginx = answers
        assert by_gateway[0] == by_nginx[0]
        for name in ("cache-control", "access-control-allow-origin", "x-content-type-options"):
            assert by_gateway[1][name] == by_nginx[1][name], name
        assert by_nginx[1]["content-type"].startswith("text/javascript")
        assert by_nginx[1]["content-encoding"] == "gzip"


async def test_the_log_has_ids_and_no_tokens(house: House) -> None:
    async with house.client() as client:
        reading = await client.create(question("logged", 5))
        await client.read_on(reading)
        path = f"/v1/sessions/{reading.session_id}/events"
        await client.call("GET", f"{path}?stream_token=secret-4711&last_id=0")

    def lines() -> list[dict[str, Any]]:
        return [line for line in house.nginx.requests() if line["path"] == path]

    await until(lambda: len(lines()) >= 2, 10)
    read = next(line for line in lines() if line["status"] == 200)  # workers write when they like
    assert read["session"] == reading.session_id
    assert read["request_id"]
    assert (read["method"], read["protocol"]) == ("GET", "HTTP/1.1")
    assert read["completed"] == "OK"
    assert float(read["upstream_header_seconds"]) <= read["seconds"] + 0.01
    assert "secret-4711" not in house.nginx.log_text
