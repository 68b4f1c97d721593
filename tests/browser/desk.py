"""The support desk in a stack's own database: made-up sessions, and staff in their roles.

``Staff`` are members of the groups that a migration makes, and may do nothing besides.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.utils import timezone
from playwright.async_api import Browser, Page, expect

from billing.services.settlement import settle_session
from gateway_project.demo import courses, fleet
from gateway_project.demo.answers import answer
from gateway_project.demo.copying import Batch
from gateway_project.demo.course import Course
from gateway_project.demo.faults import FAULTS
from gateway_project.demo.session_rows import write
from streaming.models import StreamSession
from streaming.services.explaining import explain_all
from tests.stack import Stack

PASSWORD = "for this role only"
ROLES = ("support", "content_reviewer", "finance", "operator")
SEED = 5
LAST_NIGHT = timedelta(hours=9)
HIT = 6
MODEL = "llama-3.1-8b-instruct"
NODE = "gpu-3"


def furnish(sessions: int) -> None:
    """One member of staff for each role, named after it, and so many sessions of two days besides
    those of last night's trouble. Run by ``manage.py shell``."""
    for role in ROLES:
        user = User.objects.create_user(role, password=PASSWORD, is_staff=True)
        user.groups.add(Group.objects.get(name=role))
    if sessions:
        call_command(
            "seed_demo", sessions=sessions, days=2.0, tenants=2, seed=SEED, billing="never"
        )
        run_out_of_memory()


def run_out_of_memory() -> None:
    """Have an engine do so under some sessions, all of a tenant whose content support may not see.

    By a seed of its own: what becomes of each is the same whenever this is run.
    """
    chance = random.Random(SEED)
    now = timezone.now()
    world = fleet.prepare(
        chance, tenants=2, users=40, starts_at=now - timedelta(days=2), by="system"
    )
    batch = Batch()
    for _ in range(HIT):
        course = Course(
            world, chance, customer=world.customers[1], model=MODEL,
            answer=answer(chance, fleet.ALIASES[MODEL]), at=(now - LAST_NIGHT).timestamp(),
        )  # fmt: skip
        course.begin(NODE)
        courses.failed_over(course, FAULTS[0], HIT - 1)
        write(course, batch, announced=False)
    batch.write()
    explain_all()
    for session in StreamSession.objects.filter(incident__subject=NODE):
        settle_session(session.pk)


@contextmanager
def furnished(*engine_nodes: str, sessions: int = 40) -> Iterator[Stack]:
    """A stack with a gateway, staff and sessions."""
    with Stack(engine_nodes=engine_nodes, env={"HEALTH_INTERVAL": "0.3"}) as stack:
        fill = f"from tests.browser.desk import furnish; furnish({sessions})"
        stack.manage("shell", "-v", "0", "-c", fill)
        yield stack


@dataclass
class Case:
    """One of those sessions, which went on."""

    id: str
    reference: str
    end_user: str
    tokens: int
    incident: int
    text: str
    """Words of its answer."""


def case_of(stack: Stack) -> Case:
    ((session_id, *others),) = stack.sql(
        """
        SELECT s.id, s.reference, s.end_user, s.completion_tokens, s.incident_id
        FROM streaming_streamsession s JOIN streaming_incident i ON i.id = s.incident_id
        WHERE i.subject = %s AND i.opened_at BETWEEN now() - %s * interval '1 minute' AND now()
        AND s.outcome = 'recovered' AND s.end_user <> '' AND s.completion_tokens > 60
        ORDER BY s.created_at LIMIT 1
        """,
        NODE,
        LAST_NIGHT.total_seconds() // 60 + 60,
    )
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
