"""What strangers write into headers and names: it reaches neither other headers nor other log lines."""

from __future__ import annotations

import asyncio
import logging
import re
from urllib.parse import quote

from gateway_project.logs import LineFormatter
from tests.security.conftest import House, errors_in, request

LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ [\w.]+ .*|  .*)")
FORGED = "2026-01-01T00:00:00.000Z CRITICAL forged gateway stopped"
NASTY = {
    "line end": f"a\r\n{FORGED}",
    "bare CR": f"a\r{FORGED}",
    "bare LF": f"a\n{FORGED}",
    "NUL": "a\x00b",
    "escape": "a\x1b[2J\x1b]0;owned\x07",
    "C1": "a\x85b\x9bc",
    "bidi": "a\u202egnp.exe\u2066",
    "separators": f"a\u2028{FORGED}\u2029",
    "header": "a\r\nX-Injected: 1\r\n\r\n<html>",
    "long": "a" * 9000,
    "spaces and quotes": 'a b="c" session=1',
    "emoji": "a👩‍💻",
}
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


async def test_headers(house: House) -> None:
    """Byte by byte, since no client library would send them."""
    token = house.token()
    names = ("X-Request-Id", "X-Unbroken-User", "Idempotency-Key", "Origin", "X-Unbroken-Heartbeat",
             "X-Unbroken-Rehearse", "Last-Event-ID", "Cookie", "X-Forwarded-For", "Authorization",
             "User-Agent", "X-Unbroken-Level", "X-Unbroken-Variant", "traceparent", "Host")  # fmt: skip
    before = len(house.stack.gateway(0).log)

    async def send(name: str, value: str, path: str) -> None:
        head = f"GET {path} HTTP/1.1\r\nConnection: close\r\n".encode()
        if name != "Host":
            head += b"Host: localhost\r\n"
        if name != "Authorization":
            head += f"Authorization: Bearer {token}\r\n".encode()
        answer = await raw(house, head + f"{name}: ".encode() + value.encode() + b"\r\n\r\n")
        status, _, rest = answer.partition(b"\r\n")
        head, _, body = rest.partition(b"\r\n\r\n")
        assert re.fullmatch(rb"HTTP/1\.1 [234]\d\d .*", status), (name, value, status)
        assert b"x-injected" not in head.lower()
        assert b"<html>" not in body

    await asyncio.gather(
        *(
            send(name, value, path)
            for name in names
            for value in NASTY.values()
            for path in ("/v1/models", "/v1/sessions/x/events?last_id=1")
        )
    )
    for line in (
        b"X-\xff\xfe: 1",
        b"\xc3\xa9: 1",
        b"a b: 1",
        b": 1",
        b" x: 1",
        b"X-A : 1",
        b"X: \xff\x80",
    ):
        for upgrade in (b"", b"Upgrade: websocket\r\nConnection: Upgrade\r\n"):
            answer = await raw(
                house,
                b"GET /ws/chat/ HTTP/1.1\r\nHost: localhost\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + upgrade + line + b"\r\n\r\n",
                is_socket=True,
            )
            assert answer[9:12] in (b"101", b"400", b"404"), (line, answer)
    check(house.stack.gateway(0).log[before:])


def test_bodies(house: House) -> None:
    before = len(house.stack.gateway(0).log)
    for text in NASTY.values():
        for body in (
            request(user=text), request(model=text), request(stop=[text]), request(**{text: 1}),
            {**request(), "messages": [{"role": text, "content": "x"}]},
        ):  # fmt: skip
            answer = house.ask("POST", "/v1/sessions", house.key, json=body)
            assert answer.status_code in (201, 400, 404), answer.text
        for order in ({"user": text}, {"user": "u", text: 1}, {"user": "u", "variant": text}):
            answer = house.ask("POST", "/v1/embed-tokens", house.key, json=order)
            assert answer.status_code in (201, 400)
        for path in ("/v1/sessions/", "/v1/embed-tokens/", "/"):
            answer = house.ask("DELETE", path + quote(text[:200], safe=""), house.key)
            assert answer.status_code in (400, 404, 405)
    check(house.stack.gateway(0).log[before:])


def test_ids_of_requests_are_sane(house: House) -> None:
    good = house.ask("GET", "/healthz", headers={"X-Request-Id": "a.b-c_1"})
    assert good.headers["x-request-id"] == "a.b-c_1"
    for odd in ("a b", "a;b", "a" * 65, "é", 'a"'):
        answer = house.ask("GET", "/healthz", headers={"X-Request-Id": odd.encode()})  # type: ignore[dict-item]
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


def test_a_record_is_a_line() -> None:
    formatter = LineFormatter()
    for text in NASTY.values():
        try:
            raise ValueError(text)
        except ValueError as exc:
            record = logging.makeLogRecord(
                {"name": "t", "levelname": "ERROR", "msg": "failed: %s", "args": (text,),
                 "exc_info": (ValueError, exc, exc.__traceback__), "user": text}
            )  # fmt: skip
        lines = formatter.format(record)
        assert not CONTROLS.search(lines)
        assert [line for line in lines.split("\n") if not line.startswith("  ")] == [
            lines.split("\n")[0]
        ]


def test_credentials_are_in_no_log(house: House) -> None:
    token = house.token()
    house.chat(token)
    house.ask("GET", f"/v1/models?stream_token={token}")
    log = house.stack.gateway(0).log
    for secret in (token, house.key, house.other_key):
        assert secret not in log


def check(log: str) -> None:
    """Each line is a record's own, or the indented rest of one."""
    for line in log.split("\n")[:-1]:
        assert LINE.fullmatch(line), line
        assert not line.startswith(FORGED[:24])
        assert not CONTROLS.search(line), line
    assert not errors_in(log)


async def raw(house: House, data: bytes, *, is_socket: bool = False) -> bytes:
    """Everything that is answered until the connection ends; of a WebSocket the head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", house.stack.gateway(0).port)
    try:
        writer.write(data)
        await writer.drain()
        if is_socket:
            return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()
