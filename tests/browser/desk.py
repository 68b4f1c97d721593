"""The support desk in a stack's own database: made-up sessions, and staff in their roles.

``Staff`` are members of the groups that a migration makes, and may do nothing besides.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from django.contrib.auth.models import Group, User
from django.core.management import call_command
from playwright.async_api import Browser, Page, expect

from billing.services.settlement import settle_session
from streaming.models import StreamSession
from tests.stack import Stack

PASSWORD = "for this role only"
ROLES = ("support", "content_reviewer", "finance", "operator")
SESSIONS = 160
SEED = 5


def furnish(sessions: int = 0) -> None:
    """One member of staff for each role, named after it, and so many sessions of two days, those of
    incidents settled. Run by ``manage.py shell``."""
    for role in ROLES:
        user = User.objects.create_user(role, password=PASSWORD, is_staff=True)
        user.groups.add(Group.objects.get(name=role))
    if sessions:
        call_command(
            "seed_demo", sessions=sessions, days=2.0, tenants=2, seed=SEED, billing="never"
        )
    for session in StreamSession.objects.exclude(incident=None):
        settle_session(session.pk)


@contextmanager
def furnished(*engine_nodes: str, sessions: int = SESSIONS) -> Iterator[Stack]:
    """A stack with a gateway, staff and sessions."""
    with Stack(engine_nodes=engine_nodes, env={"HEALTH_INTERVAL": "0.3"}) as stack:
        fill = f"from tests.browser.desk import furnish; furnish({sessions})"
        stack.manage("shell", "-v", "0", "-c", fill)
        yield stack


@dataclass
class Case:
    """A made-up session that an engine's failure has interrupted, with others, and that went on."""

    id: str
    reference: str
    end_user: str
    node: str
    tokens: int
    incident: int
    text: str
    """Words of its answer."""


def case_of(stack: Stack, *, support_sees_content: bool = False) -> Case:
    """One of last night that is charged, and whose user no other session is of."""
    rows = stack.sql(
        """
        SELECT s.id, s.reference, s.end_user, s.interrupted_node, s.completion_tokens, s.incident_id
        FROM streaming_streamsession s JOIN streaming_tenant t ON t.id = s.tenant_id
        JOIN billing_usagerecord u ON u.session_id = s.id
        WHERE s.outcome = 'recovered' AND s.interrupted_node <> '' AND s.end_user <> ''
        AND s.interrupted_at > now() - interval '1 day' AND u.amount > 0 AND u.billed_tokens > 30
        AND t.support_sees_content = %s AND s.incident_id IS NOT NULL
        ORDER BY (SELECT count(*) FROM streaming_streamsession o WHERE o.end_user = s.end_user), s.id
        LIMIT 1
        """,
        support_sees_content,
    )
    ((session_id, *others),) = rows
    texts = stack.sql(
        "SELECT text FROM streaming_tokencheckpoint WHERE session_id = %s ORDER BY first_seq",
        session_id,
    )
    text = b"".join(bytes(one) for (one,) in texts).decode()
    longest = max(re.findall(r"[^\W\d_]+(?: [^\W\d_]+)*", text), key=len)
    return Case(str(session_id), *others, longest)


@dataclass
class Visitor:
    """Somebody at a page, and all that went wrong in it."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    async def goto(self, path: str) -> None:
        await self.page.goto(f"{self.url}{path}")

    async def follow(self, name: str) -> None:
        await self.page.get_by_role("link", name=name, exact=True).first.click()

    async def press(self, name: str) -> None:
        await self.page.get_by_role("button", name=name, exact=True).click()

    async def choose(self, action: str, names: Sequence[str]) -> None:
        """An action of a list, for the rows whose link has one of these names."""
        for name in names:
            row = self.page.locator("#result_list tbody tr").filter(has_text=name)
            await row.get_by_role("checkbox").check()
        await self.page.get_by_label("Action:").select_option(label=action)
        await self.press("Go")


@asynccontextmanager
async def logged_in(browser: Browser, stack: Stack, role: str) -> AsyncIterator[Visitor]:
    """A member of staff at the front page. Whatever the browser complains about fails the test."""
    url = stack.gateway().url
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    page.set_default_timeout(30_000)
    who = Visitor(page, url)
    page.on("pageerror", lambda error: who.problems.append(str(error)))
    page.on("console", lambda m: who.problems.append(m.text) if m.type == "error" else None)
    page.on("request", lambda request: who.hosts.add(urlsplit(request.url).netloc))
    await who.goto("/admin/")
    await page.get_by_label("Username").fill(role)
    await page.get_by_label("Password").fill(PASSWORD)
    await who.press("Log in")
    await expect(page.locator("#user-tools")).to_contain_text(role)
    yield who
    await context.close()
    assert who.problems == []
    assert who.hosts == {urlsplit(url).netloc}
