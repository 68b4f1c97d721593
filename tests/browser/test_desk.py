"""Journeys of staff: find last night's interruption, explain it, credit it, and say whom else it hit."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.browser.desk import NODE, Case, case_of, furnished, logged_in
from tests.durability.reader import until
from tests.stack import Stack

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def desk() -> Iterator[Stack]:
    with furnished() as stack:
        yield stack


@pytest.fixture(scope="module")
def case(desk: Stack) -> Case:
    return case_of(desk)


async def test_support_finds_explains_and_sees_whom_else_it_hit(
    browser: Browser, desk: Stack, case: Case, tmp_path: Path
) -> None:
    async with logged_in(browser, desk, "support") as staff:
        page = staff.page
        # The first thing there is: what was interrupted lately, and a field to find a session.
        await expect(page.get_by_role("heading", name="Interrupted sessions, last")).to_be_visible()
        await page.get_by_label("Find a session").fill(case.end_user)
        await staff.press("Find")
        await staff.follow(case.reference)

        sentence = page.locator(".unbroken-sentence")
        await expect(sentence).to_contain_text(f"The engine {NODE} ran out of memory after token")
        await expect(sentence).to_contain_text("the answer continued on gpu-")
        await expect(sentence).to_contain_text(f"and was charged for {case.tokens:,}")
        picture = page.get_by_role("img", name=f"Time line of session {case.reference}")
        await expect(picture).to_be_visible()
        await expect(page.locator("body")).to_contain_text("after a failure")

        incident = page.locator(f'a[href$="/streaming/incident/{case.incident}/change/"]').first
        await incident.click()
        hit = desk.sql(
            "SELECT count(*) FROM streaming_streamsession WHERE incident_id = %s", case.incident
        )[0][0]
        figures = page.locator(".unbroken-cards")
        await expect(figures).to_contain_text(re.compile(rf"Sessions hit\s*{hit}\b"))
        words = await page.get_by_label("Text", exact=True).input_value()
        assert f"{hit} answer" in words
        assert NODE not in words
        await expect(page.locator("#sessions")).to_contain_text(case.reference)

        # For the customer who asks for all of them.
        await staff.goto(f"/admin/streaming/interruptedsession/?q={case.reference}")
        async with page.expect_download() as started:
            await staff.choose("Export selected sessions (CSV)", [case.reference])
        path = tmp_path / "sessions.csv"
        await (await started.value).save_as(path)
        with path.open(encoding="utf-8", newline="") as file:
            (line,) = csv.DictReader(file)
        assert line["session_id"] == case.id
        assert line["billed_tokens"] == str(case.tokens)


async def test_finance_credits_it(browser: Browser, desk: Stack, case: Case) -> None:
    async with logged_in(browser, desk, "finance") as staff:
        page = staff.page
        await staff.goto(f"/admin/streaming/streamsession/{case.id}/change/")
        await expect(page.locator("body")).to_contain_text("Charged")
        await staff.follow("Credit…")
        await page.get_by_label("Amount").fill("0.00001")
        await page.get_by_label("Reason").fill("It stopped in the midst of a sentence")
        await staff.press("Credit")
        await expect(page.locator(".messagelist")).to_contain_text("booked.")
        await staff.goto(f"/admin/streaming/streamsession/{case.id}/change/")
        billing = page.get_by_role("region", name="What it costs")
        await expect(billing).to_contain_text("credit by user:finance")
    rows = desk.sql(
        "SELECT amount, reason, actor FROM billing_ledgerentry WHERE session_id = %s AND kind = 'credit'",
        case.id,
    )
    assert [(f"{amount:.5f}", actor) for amount, _, actor in rows] == [("-0.00001", "user:finance")]


async def test_support_cannot_see_what_was_said_wherever_they_look(
    browser: Browser, desk: Stack, case: Case
) -> None:
    session = f"/admin/streaming/streamsession/{case.id}"
    async with logged_in(browser, desk, "support") as staff:
        page = staff.page
        await staff.goto(f"{session}/change/")
        await expect(page.get_by_label("Why do you have to see it?")).to_have_count(0)
        for path in (
            f"{session}/change/",
            f"{session}/history/",
            f"{session}/evidence/",
            f"{session}/evidence.json",
            f"{session}/reveal/",
            f"/admin/streaming/streamsession/?q={case.id}",
            f"/admin/streaming/interruptedsession/?q={case.id}",
            f"/admin/streaming/tokencheckpoint/?q={case.id}",
            f"/admin/streaming/attempt/?q={case.id}",
            f"/admin/streaming/sessionevent/?q={case.id}",
            f"/admin/streaming/outboxmessage/?q={case.id}",
            f"/v1/sessions/{case.id}",
            f"/v1/sessions/{case.id}/events",
        ):
            response = await page.context.request.get(f"{staff.url}{path}")
            assert case.text not in await response.text(), path
        # Not by asking for it as those may who see it, either.
        cookies = {one["name"]: one["value"] for one in await page.context.cookies()}
        for path in (f"{session}/reveal/", f"{session}/evidence.json"):
            response = await page.context.request.post(
                f"{staff.url}{path}",
                form={
                    "csrfmiddlewaretoken": cookies["csrftoken"],
                    "reason": "I would like to know",
                },
                headers={"referer": f"{staff.url}{session}/change/"},
            )
            assert response.status == 403, path
            assert case.text not in await response.text()
    assert not _views_of(desk, case)


async def test_a_reviewer_sees_it_for_a_reason_that_is_audited(
    browser: Browser, desk: Stack, case: Case
) -> None:
    async with logged_in(browser, desk, "content_reviewer") as staff:
        page = staff.page
        await staff.goto(f"/admin/streaming/streamsession/{case.id}/change/")
        assert case.text not in await page.content()
        await page.get_by_label("Why do you have to see it?").fill("The customer asks about a word")
        await staff.press("Show the content, this once")
        await expect(page.locator(".unbroken-answer")).to_contain_text(case.text)
        await expect(page.locator(".unbroken-answer .unbroken-seam")).not_to_have_count(0)
        await page.reload()
        # Once: whoever comes back says again why.
        await staff.goto(f"/admin/streaming/streamsession/{case.id}/change/")
        assert case.text not in await page.content()
    # A gateway hands it to the audit log where no worker runs.
    await until(lambda: len(_views_of(desk, case)) >= 1, 60)
    actor, data = _views_of(desk, case)[0]
    assert actor == "user:content_reviewer"
    assert "The customer asks about a word" in str(data)


def _views_of(desk: Stack, case: Case) -> list[tuple[str, object]]:
    """As the audit log has them."""
    found = desk.sql(
        "SELECT actor, data FROM billing_auditentry WHERE action = 'content.view' AND session_id = %s",
        case.id,
    )
    return [(actor, data) for actor, data in found]
