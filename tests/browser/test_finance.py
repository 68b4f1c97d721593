"""Finance's month in a real browser: see the ledger, credit a charge, close, export, download."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.office import PASSWORD, SESSIONS, USER
from tests.stack import Stack

pytestmark = pytest.mark.browser


@pytest.fixture
def office(start_stack) -> Stack:
    stack: Stack = start_stack()
    stack.manage("shell", "-v", "0", "-c", "from tests.browser.office import fill; fill()")
    return stack


async def follow(page: Page, name: str) -> None:
    await page.get_by_role("link", name=name, exact=True).click()


async def press(page: Page, name: str) -> None:
    await page.get_by_role("button", name=name, exact=True).click()


async def test_a_month_from_its_first_line_to_the_download(
    browser: Browser, office: Stack, tmp_path: Path
) -> None:
    url = office.gateway().url
    page = await browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(30_000)
    problems: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))

    await page.goto(f"{url}/admin/")
    await page.get_by_label("Username").fill(USER)
    await page.get_by_label("Password").fill(PASSWORD)
    await press(page, "Log in")

    await follow(page, "Ledger entries")
    rows = page.locator("#result_list tbody tr")
    await expect(rows).to_have_count(SESSIONS)

    # The filter finds the tenant by typing.
    # Not by role: until the script has run, the plain list has the same one.
    await page.locator(".billing-filter .select2-selection").first.click()
    await page.get_by_role("searchbox").last.fill("ac")
    await page.get_by_role("option", name="Acme & Sons").click()
    await page.locator(".billing-filter").first.get_by_role("button", name="Show").click()
    await expect(page).to_have_url(re.compile("tenant=[0-9]+"))
    await expect(rows).to_have_count(SESSIONS)

    # A credit for the latest charge: 10 tokens of prompt, 9 of the answer.
    await rows.first.get_by_role("checkbox").check()
    await page.get_by_label("Action:").select_option(label="Credit selected charges…")
    await press(page, "Go")
    await page.get_by_label("Amount").fill("0.01")
    await page.get_by_label("Reason").fill("The tunnel under the river")
    await press(page, "Credit")
    await expect(page.locator(".messagelist")).to_contain_text("-0.01 EUR booked.")
    await follow(page, "Bill of the session")
    await expect(page.locator(".billing-table").first).to_contain_text("Credited")

    # The month is over: proven, closed, exported.
    await page.goto(f"{url}/admin/billing/billingperiod/")
    month = (await page.locator("#result_list .field-name").first.inner_text()).strip()
    await follow(page, month)
    await follow(page, "Reconcile")
    await expect(page.get_by_role("status")).to_contain_text("Ledger = settlements = log")
    await page.go_back()
    await follow(page, "Close…")
    await expect(page.get_by_text("✗ no")).to_have_count(0)
    await press(page, f"Close {month}")
    await expect(page.locator(".messagelist")).to_contain_text("is closed.")
    # 30 tokens of prompt and 24 of answers, less the credit.
    await expect(page.locator(".inline-group")).to_contain_text("0.113 EUR")
    await expect(page.locator(".inline-group")).to_contain_text("0.11 EUR")

    await follow(page, "Export…")
    await press(page, "Export")
    await expect(page.locator(".messagelist")).to_contain_text(f"{SESSIONS + 1} lines exported.")
    async with page.expect_download() as started:
        await page.get_by_role("link", name=".csv").click()
    path = tmp_path / "ledger.csv"
    await (await started.value).save_as(path)
    async with page.expect_download() as started:
        await follow(page, "manifest.json")
    manifest_path = tmp_path / "manifest.json"
    await (await started.value).save_as(manifest_path)

    manifest = json.loads(manifest_path.read_text())
    assert manifest["files"][0]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest["amounts"] == {"EUR": "0.113"}
    with path.open(encoding="utf-8-sig", newline="") as file:
        assert len(list(csv.reader(file))) == SESSIONS + 2
    assert problems == []
    assert hosts == {urlsplit(url).netloc}
