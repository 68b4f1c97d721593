"""The figures in ``docs/billing.md`` are those that come out."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest
from django.core.management import get_commands

from billing.core import money
from billing.models import Settlement, UsageRecord, Waste
from tests.billing.admin.books import interrupted_session
from tests.billing.rows import add_plan

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "billing.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The cells of the table whose heading begins so."""
    rows = DOCUMENT.partition(f"| {heading} |")[2].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def prices() -> dict[str, str]:
    found = re.search(
        r"input ([\d.]+), cached input ([\d.]+), output ([\d.]+), our own cost ([\d.]+)", DOCUMENT
    )
    return dict(zip(("input", "cached", "output", "cost"), found.groups(), strict=True))


@pytest.mark.django_db
def test_the_worked_example_comes_out_so():
    add_plan(**prices())
    session = interrupted_session().session
    settled = Settlement.objects.filter(usage_id=session.pk).order_by("n")
    usage = UsageRecord.objects.get(pk=session.pk)
    shown = [
        [
            str(line.n), f"{line.from_tokens} → {line.to_tokens}", str(line.output_tokens),
            str(line.prompt_tokens), str(line.cached_tokens), line.evidence, money.plain(line.amount),
        ]
        for line in settled
    ]  # fmt: skip
    shown.append(
        [
            "sum", "", str(usage.billed_tokens), str(usage.prompt_tokens), str(usage.cached_tokens),
            "", money.plain(usage.amount),
        ]
    )  # fmt: skip
    assert table("line") == shown
    assert usage.amount == sum(line.amount for line in settled)
    waste = Waste.objects.get(usage=usage)
    assert f"{usage.generated_tokens} were generated" in DOCUMENT
    assert f"{waste.tokens} discarded" in DOCUMENT
    assert f"cost us {money.plain(waste.cost)} EUR" in DOCUMENT


def test_amounts_are_rounded_so():
    rows = table("exact sum")
    assert len(rows) >= 5
    for exact, rounded in rows:
        amount, currency = exact.split()
        value, same = rounded.split()
        assert same == currency
        assert money.rounded(Decimal(amount), currency) == Decimal(value)


def test_it_names_commands_that_exist():
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    named = set(re.findall(r"manage\.py (\w+)", DOCUMENT + readme))
    assert len(named) > 5
    assert named <= set(get_commands())


def test_it_leads_to_pages_that_exist():
    docs = Path(__file__).resolve().parents[2] / "docs"
    links = re.findall(r"\]\(([\w-]+\.md)\)", DOCUMENT)
    assert links
    for name in links:
        assert (docs / name).is_file(), name
