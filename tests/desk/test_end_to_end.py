"""From the button in the admin to the gateways that obey: stopping, and having continued."""

from __future__ import annotations

import asyncio
import re

import httpx

from tests.durability.reader import until
from tests.resume.conftest import stack_of_two  # noqa: F401  (a fixture)
from tests.resume.events import Client, Reading, question, urls
from tests.stack import Gateway, Stack

PASSWORD = "only for tests of the desk"


class Desk:
    """A member of staff in front of a gateway's admin."""

    def __init__(self, gateway: Gateway) -> None:
        self._http = httpx.Client(base_url=gateway.url, follow_redirects=True, timeout=30)
        page = "/admin/login/?next=/admin/streaming/streamsession/"
        self._http.get(page)
        self._post(page, username="pat", password=PASSWORD)

    def asked(self, name: str, session_id: str) -> str:
        """The page that asks whether that shall be done."""
        answer = self._http.get(self._page(name, session_id))
        assert answer.status_code == 200, answer.text[-2000:]
        return answer.text

    def press(self, name: str, session_id: str) -> str:
        """What the admin says once it is done."""
        answer = self._post(self._page(name, session_id))
        assert answer.status_code == 200, answer.text[-2000:]
        return " ".join(re.findall(r'<li class="(\w+)">', answer.text))

    def _post(self, page: str, **fields: str) -> httpx.Response:
        token = self._http.cookies["csrftoken"]
        return self._http.post(page, data={**fields, "csrfmiddlewaretoken": token})

    @staticmethod
    def _page(name: str, session_id: str) -> str:
        return f"/admin/streaming/streamsession/do/{name}/?session={session_id}"


def state(stack: Stack, reading: Reading) -> str:
    ((found,),) = stack.sql(
        "SELECT state FROM streaming_streamsession WHERE id = %s", reading.session_id
    )
    return found


async def left(client: Client, text: str, gateway: int = 1) -> Reading:
    """A session whose reader has had a little of it."""
    reading = await client.create(question(text, 120), gateway=gateway)
    await client.read(reading, leave_at=3, gateway=gateway)
    return reading


async def test_what_the_desk_asks_for_is_done_by_the_gateways(stack_of_two):  # noqa: F811
    env = {"GRACE_SECONDS": "1", "DJANGO_SUPERUSER_PASSWORD": PASSWORD}
    stack, _ = stack_of_two(pace=50, env=env)
    stack.manage("createsuperuser", "--noinput", "--username", "pat", "--email", "p@example.org")
    desk = await asyncio.to_thread(Desk, stack.gateway(1))

    async def press(name: str, reading: Reading) -> str:
        return await asyncio.to_thread(desk.press, name, reading.session_id)

    async with Client(urls(stack), stack.api_key()) as client:
        # Live, on another process than the one that is asked.
        live = await client.create(question("stopped while it is read", 2000), gateway=0)
        reader = asyncio.create_task(client.read(live, gateway=0))
        await until(lambda: live.seq >= 5)
        assert await press("continue", live) == "error"
        assert await press("stop", live) == "success"
        await asyncio.wait_for(reader, 10)
        assert live.end is not None
        assert live.end["state"] == state(stack, live) == "stopped"
        assert await press("stop", live) == "error"

        # Suspended: one is stopped, the other finished for when its reader returns.
        stopped, continued = [await left(client, text) for text in ("suspended", "continued")]
        await until(lambda: {state(stack, stopped), state(stack, continued)} == {"suspended"})
        assert await press("stop", stopped) == "success"
        assert state(stack, stopped) == "stopped"
        assert await press("continue", continued) == "success"
        await until(lambda: state(stack, continued) == "completed", 30)
        await client.read_on(continued)
        continued.must_be_whole()

        # Orphans of a process that was killed: who is told so goes on, or ends, and is not suspended.
        stopped, continued = [await left(client, text, 0) for text in ("orphan 1", "orphan 2")]
        stack.gateway(0).kill()
        await until(lambda: "Nothing: " not in desk.asked("continue", continued.session_id))
        assert await press("continue", continued) == "success"
        assert await press("stop", stopped) == "success"
        await until(lambda: state(stack, stopped) == "stopped", 30)
        await until(lambda: state(stack, continued) == "completed", 30)
        await client.read_on(continued, gateways=[1])
        continued.must_be_whole()

    told = stack.sql(
        "SELECT data ->> 'action', count(*) FROM streaming_outboxmessage WHERE kind = 'audit'"
        " AND data ->> 'actor' = 'user:pat' AND session_id IS NOT NULL GROUP BY 1 ORDER BY 1"
    )
    assert told == [("session.continue", 2), ("session.stop", 3)]
