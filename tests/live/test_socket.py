"""``/ws/admin/live/`` of a real gateway: who is let in, who is cut off, and who is slow."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from itertools import pairwise
from urllib.parse import urlsplit

import httpx
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from streaming.consumers.live import FORBIDDEN, LOGGED_OUT, NOT_UNDERSTOOD, Watcher
from tests.stack import Stack

PASSWORD = "for the board only"
USERS = f"""
from django.contrib.auth.models import Permission, User
from streaming.models import Tenant, TenantMember
seer = User.objects.create_user("seer", password="{PASSWORD}", is_staff=True)
watch = Permission.objects.get(codename="watch_live_board")
seer.user_permissions.add(watch, Permission.objects.get(codename="all_tenants"))
member = User.objects.create_user("member", password="{PASSWORD}", is_staff=True)
member.user_permissions.add(watch)
TenantMember.objects.create(user=member, tenant=Tenant.objects.create(name="acme"))
User.objects.create_user("clerk", password="{PASSWORD}", is_staff=True)
"""


@pytest.fixture(scope="module")
def desk() -> Iterator[Stack]:
    with Stack() as stack:
        stack.manage("shell", "-v", "0", "-c", USERS)
        yield stack


def log_in(desk: Stack, user: str) -> httpx.Client:
    """Somebody's browser, as far as cookies go."""
    client = httpx.Client(base_url=desk.gateway().url, timeout=30)
    client.get("/admin/login/")
    form = {"username": user, "password": PASSWORD, "next": "/admin/"}
    token = {"csrfmiddlewaretoken": client.cookies["csrftoken"]}
    answer = client.post("/admin/login/", data={**form, **token})
    assert answer.status_code == 302
    return client


@asynccontextmanager
async def board(
    desk: Stack, browser: httpx.Client | None, *, origin: str | None = "", **options
) -> AsyncIterator[ClientConnection]:
    """The socket as a page of ``origin`` opens it: by default one of ours; None: no page at all."""
    cookies = "; ".join(f"{k}={v}" for k, v in browser.cookies.items()) if browser else ""
    url = f"{desk.gateway().websocket_url}/ws/admin/live/"
    origin = desk.gateway().url if origin == "" else origin
    async with connect(
        url, origin=origin, additional_headers={"Cookie": cookies}, **options
    ) as opened:
        yield opened


async def snapshot_of(opened: ClientConnection) -> dict:
    async with asyncio.timeout(20):
        return json.loads(await opened.recv())


async def close_code(opened: ClientConnection) -> int | None:
    with suppress(websockets.ConnectionClosed):
        async with asyncio.timeout(30):
            async for _ in opened:
                pass
    return opened.close_code


async def test_who_may_watch_gets_figures_again_and_again(desk):
    async with board(desk, log_in(desk, "seer")) as opened:
        first, second = await snapshot_of(opened), await snapshot_of(opened)
    assert first["at"] < second["at"]
    assert not first["limited"]
    assert second["gateways"][0]["state"] == "alive"


async def test_members_of_a_tenant_get_that_tenants(desk):
    async with board(desk, log_in(desk, "member")) as opened:
        shown = await snapshot_of(opened)
    assert shown["limited"]
    assert shown["nodes"] is None


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "https://{host}", "http://{name}:1"]
)
async def test_pages_of_others_are_refused_whoever_is_logged_in(desk, origin):
    place = urlsplit(desk.gateway().url)
    named = origin and origin.format(host=place.netloc, name=place.hostname)
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with board(desk, log_in(desk, "seer"), origin=named):
            pass
    assert refused.value.response.status_code == 403


async def test_who_is_not_logged_in_is_told_so(desk):
    async with board(desk, None) as opened:
        assert await close_code(opened) == LOGGED_OUT


async def test_who_may_not_watch_is_told_so(desk):
    async with board(desk, log_in(desk, "clerk")) as opened:
        assert await close_code(opened) == FORBIDDEN


async def test_who_logs_out_sees_no_more(desk):
    browser = log_in(desk, "seer")
    async with board(desk, browser) as opened:
        await snapshot_of(opened)
        token = {"csrfmiddlewaretoken": browser.cookies["csrftoken"]}
        browser.post("/admin/logout/", data=token)
        assert await close_code(opened) == LOGGED_OUT


async def test_messages_are_not_taken(desk):
    async with board(desk, log_in(desk, "seer")) as opened:
        await snapshot_of(opened)
        await opened.send("anything")
        assert await close_code(opened) == NOT_UNDERSTOOD


async def test_a_slow_watcher_skips_what_it_had_no_room_for(desk):
    desk.sql(
        "INSERT INTO streaming_gatewayinstance (hostname, pid, started_at, heartbeat_at)"
        " SELECT repeat('x', 250), i, now(), now() - interval '1 minute' FROM generate_series(1, 200) i"
    )
    place = urlsplit(desk.gateway().url)
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.setblocking(False)
    await asyncio.get_running_loop().sock_connect(small, (place.hostname, place.port))
    browser = log_in(desk, "seer")
    async with (
        board(desk, browser, sock=small, max_queue=1, compression=None) as slow,
        board(desk, browser) as quick,
    ):
        # While the quick one is sent eight, the slow one reads none.
        for _ in range(8):
            last = await snapshot_of(quick)
        times = [(await snapshot_of(slow))["at"]]
        while times[-1] < last["at"]:
            times.append((await snapshot_of(slow))["at"])
    seen = [datetime.fromisoformat(at) for at in times]
    assert max(b - a for a, b in pairwise(seen)).total_seconds() > 3
    assert len(seen) < 6


async def test_only_the_newest_waits():
    watcher = Watcher(None)
    for number in "123":
        watcher.offer(number)
    assert await watcher.news() == "3"
    watcher.offer("4")
    assert await watcher.news() == "4"


def test_polling_answers_the_same_people_the_same(desk):
    answer = log_in(desk, "seer").get("/admin/live/data")
    assert answer.json()["gateways"]
    assert "no-store" in answer.headers["cache-control"]
    assert log_in(desk, "clerk").get("/admin/live/data").status_code == 403
    assert log_in(desk, "member").get("/admin/live/data").json()["limited"]
    stranger = httpx.Client(base_url=desk.gateway().url)
    assert stranger.get("/admin/live/data").status_code == 302
