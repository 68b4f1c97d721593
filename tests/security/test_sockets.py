"""The WebSocket of browsers: nothing before ``auth``, nobody from elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import websockets
from django.core import signing
from websockets.asyncio.client import ClientConnection, connect

from tests.security.conftest import EVIL, NEWS, SHOP, House, code_of, request
from tests.websocket.schema import check_message
from tests.websocket.talk import Talk

Message = dict[str, Any]


@asynccontextmanager
async def browser(
    house: House, origin: str | None = SHOP, *, protocol: bool = True, **headers: str
) -> AsyncIterator[ClientConnection]:
    """A socket as a page's script opens it."""
    async with connect(
        house.socket_url,
        subprotocols=["unbroken.v1"] if protocol else None,  # type: ignore[list-item]
        additional_headers={**({"Origin": origin} if origin else {}), **headers},
        ping_interval=None,
        close_timeout=1,
    ) as socket:
        yield socket


async def say(socket: ClientConnection, type_: str, **fields: Any) -> Message:
    """Send one message, read one."""
    await socket.send(json.dumps({"type": type_, **fields}))
    return await hear(socket)


async def hear(socket: ClientConnection) -> Message:
    message = json.loads(await socket.recv())
    check_message(message)
    return message


async def turned_away(socket: ClientConnection) -> tuple[str, int]:
    """The code of the error, and of the close that follows."""
    error = (await hear(socket))["error"]["code"]
    with pytest.raises(websockets.ConnectionClosed) as closed:
        await socket.recv()
    assert closed.value.rcvd is not None
    return error, closed.value.rcvd.code


def old_token(house: House, seconds: int = 10) -> str:
    """What a token looks like whose time is over."""
    signer = signing.TimestampSigner(
        key=house.stack.env()["SECRET_KEY"], salt="unbroken.embed", sep="."
    )
    return "ub-embed-" + signer.sign_object(["0" * 32, int(time.time()) - seconds])


async def test_a_browser_says_who_it_is_first(house: House) -> None:
    async with browser(house) as socket:
        assert socket.subprotocol == "unbroken.v1"
        ready = await say(socket, "auth", token=house.token("ann"))
        assert (ready["type"], ready["user"]) == ("ready", "ann")
        opening = await say(socket, "start", request=request("by socket", 20), ref=1)
        assert opening["type"] == "session"
        talk = Talk(socket)
        talk.take(opening)
        followed = talk.sessions[opening["session"]]
        await talk.read_until(lambda: followed.end is not None)
        # A fresh token of hers is taken, one of another's is not, and the socket goes on.
        assert (await say(socket, "auth", token=house.token("ann")))["type"] == "ready"
        for other in (house.token("eve"), house.token("ann", key=house.other_key)):
            error = (await say(socket, "auth", token=other))["error"]
            assert error["code"] in ("not_permitted", "origin_not_allowed")
        session = opening["session"]
        for user in ("eve", "", "ann"):
            answer = await say(socket, "resume", session=session, seq=followed.cursor, user=user)
            assert answer["type"] == "complete"
    assert house.stack.sql(
        "SELECT end_user FROM streaming_streamsession WHERE id = %s", session
    ) == [("ann",)]


async def test_nothing_is_done_before(house: House) -> None:
    firsts: list[tuple[str | bytes, str, int]] = [
        (json.dumps({"type": "start", "request": request()}), "invalid_api_key", 4401),
        (json.dumps({"type": "ping"}), "invalid_api_key", 4401),
        (json.dumps({"type": "auth"}), "invalid_api_key", 4401),
        (json.dumps({"type": "auth", "token": "ub-embed-x"}), "invalid_api_key", 4401),
        (json.dumps({"type": "auth", "token": ""}), "invalid_api_key", 4401),
        (json.dumps({"type": "auth", "token": 7}), "invalid_request", 4400),
        (json.dumps({"type": "auth", "token": old_token(house)}), "token_expired", 4401),
        (
            json.dumps({"type": "auth", "token": house.token(key=house.other_key)}),
            "origin_not_allowed",
            4403,
        ),
        ("{", "invalid_request", 4400),
        (b"\x00\xff", "invalid_request", 4400),
        (json.dumps({"type": "auth", "token": "x" * 5000}), "request_too_large", 4400),
    ]
    (before,) = house.stack.sql("SELECT count(*) FROM streaming_streamsession")
    for first, error, code in firsts:
        async with browser(house) as socket:
            await socket.send(first)
            await socket.send(json.dumps({"type": "start", "request": request()}))
            assert await turned_away(socket) == (error, code), first
    assert house.stack.sql("SELECT count(*) FROM streaming_streamsession") == [before]


async def test_who_says_nothing_is_not_waited_for(house: House) -> None:
    async with browser(house) as socket:
        began = time.monotonic()
        assert await turned_away(socket) == ("invalid_api_key", 4401)
        assert time.monotonic() - began > 5


async def test_pages_of_other_origins(house: House) -> None:
    for origin in (EVIL, "null", f"{SHOP}.evil.example"):
        for headers in ({}, {"Authorization": f"Bearer {house.token()}"}):
            for protocol in (True, False):
                async with browser(house, origin, protocol=protocol, **headers) as socket:
                    assert await turned_away(socket) == ("origin_not_allowed", 4403)
    async with browser(
        house, NEWS, protocol=False, Authorization=f"Bearer {house.token()}"
    ) as socket:
        assert await turned_away(socket) == ("origin_not_allowed", 4403)
    # A bound token: there, on our own pages, nowhere else.
    bound = house.token(origin=SHOP)
    for origin in (SHOP, house.own):
        async with browser(house, origin) as socket:
            assert (await say(socket, "auth", token=bound))["type"] == "ready"
    async with browser(house, None) as socket:
        await socket.send(json.dumps({"type": "auth", "token": bound}))
        assert await turned_away(socket) == ("origin_not_allowed", 4403)


async def test_cookies_of_our_own_pages(house: House) -> None:
    cookie = f"unbroken_token={house.token('cookie-user')}"
    async with browser(house, house.own, Cookie=cookie) as socket:
        assert (await say(socket, "auth"))["user"] == "cookie-user"
    async with browser(house, house.own, protocol=False, Cookie=cookie) as socket:
        assert (await say(socket, "ping"))["type"] == "pong"
    for origin in (SHOP, None):
        async with browser(house, origin, protocol=False, Cookie=cookie) as socket:
            assert await turned_away(socket) == ("origin_not_allowed", 4403)
        async with browser(house, origin, Cookie=cookie) as socket:
            await socket.send(json.dumps({"type": "auth"}))
            assert await turned_away(socket) == ("origin_not_allowed", 4403)


async def test_a_token_that_expires_in_mid_connection(house: House) -> None:
    minted = house.mint("late", expires_in=60)
    async with browser(house) as socket:
        await say(socket, "auth", token=minted["token"])
        opening = await say(socket, "start", request=request("a long answer", 300))
        talk = Talk(socket)
        talk.take(opening)
        followed = talk.sessions[opening["session"]]
        await talk.read_until(lambda: followed.cursor >= 5)
        # As if its time were over: gateways look again after AUTH_CACHE_SECONDS.
        house.stack.sql(
            "UPDATE streaming_embedtoken SET expires_at = now() - interval '1 s' WHERE id = %s",
            minted["id"],
        )
        seen: list[Message] = []

        async def refused(type_: str, **fields: Any) -> None:
            known = len(talk.others)
            await socket.send(json.dumps({"type": type_, **fields}))
            await talk.read_until(lambda: len(talk.others) > known)
            seen.append(talk.others[-1])

        while not seen or seen[-1]["type"] != "error":
            await refused("start", request={"model": "no-such-model", "messages": []})
            if seen[-1]["error"]["code"] == "invalid_request":
                seen.clear()
        for type_ in ("resume", "stop"):
            await refused(type_, session=opening["session"])
        assert {one["error"]["code"] for one in seen} == {"token_expired"}
        # What is under way goes on, and acks are taken.
        await socket.send(json.dumps({"type": "ack", "session": opening["session"], "seq": 5}))
        await talk.read_until(lambda: followed.end is not None, 30)
        assert followed.end is not None
        assert followed.end["type"] == "done"
        # A fresh one opens the socket again.
        await socket.send(json.dumps({"type": "auth", "token": house.token("late")}))
        await talk.read_until(lambda: talk.others[-1]["type"] == "ready")


def test_expired_over_http(house: House) -> None:
    answer = house.ask("GET", "/v1/models", old_token(house), headers={"Origin": SHOP})
    assert (answer.status_code, code_of(answer)) == (401, "token_expired")
    assert answer.headers["access-control-allow-origin"] == SHOP
