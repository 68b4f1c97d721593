"""The FOCUS file is one by its specification."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from billing.core.money import EXACT, total
from billing.exports.run import export
from tests.billing.exports import books, read_back
from tests.billing.exports.focus_rules import MANDATORY, violations
from tests.billing.rows import add_plan, add_tenant

pytestmark = pytest.mark.django_db


def rows_of(**arguments) -> list[dict[str, str]]:
    made = export(**{"period_name": "2026-11", "format": "focus", "actor": "user:pat", **arguments})
    return read_back.lines(made)


def test_the_rules_of_the_specification_are_kept():
    books.a_month()
    rows = rows_of()
    assert len(MANDATORY) == 21
    assert violations(rows[0], rows) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("BilledCost", ""), ("BilledCost", "1,5"), ("BilledCost", "+1"), ("ListCost", "0.1"),
        ("BillingPeriodEnd", "2026-11-01T00:00:00Z"), ("ChargePeriodStart", "2026-11-12"),
        ("ChargeCategory", "Refund"), ("ChargeClass", "Fix"), ("PricingUnit", ""), ("SkuPriceId", ""),
        ("BillingCurrency", "Euro"), ("ServiceName", " "), ("EffectiveCost", "1"),
    ],
)  # fmt: skip
def test_the_rules_notice(column, value):
    books.charge()
    rows = rows_of()
    rows[0][column] = value
    assert violations(rows[0], rows)
    del rows[0][column]
    assert f"{column} is missing" in violations(rows[0], []) or column not in MANDATORY


def test_a_row_a_meter_whose_costs_add_up():
    plan = add_plan(**books.ODD, coefficient=Decimal("1.5"))
    charged = books.charge(output=7, prompt=10, cached=4, plan=plan, cost_centre="team-a")
    books.charge(output=3, prompt=0, plan=plan)
    output, fresh, cached, other = rows_of()
    assert [row["x_LineId"] for row in (output, fresh, cached)] == [str(charged.pk)] * 3
    assert [row["ConsumedQuantity"] for row in (output, fresh, cached, other)] == [
        "7",
        "6",
        "4",
        "3",
    ]
    assert total(Decimal(row["BilledCost"]) for row in (output, fresh, cached)) == charged.amount
    assert output == output | {
        "ChargeCategory": "Usage", "ChargeFrequency": "Usage-Based", "PricingQuantity": "0.000007",
        "PricingUnit": "1000000 Tokens", "ListUnitPrice": "3.98765433", "ContractedUnitPrice": "5.981481495",
        "SkuId": "m/Output Tokens", "SkuPriceId": f"{plan.pk}/m/Output Tokens", "SubAccountId": "team-a",
        "ChargePeriodStart": "2026-11-12T10:30:15Z", "ChargePeriodEnd": "2026-11-12T10:30:16Z",
        "BillingPeriodStart": "2026-11-01T00:00:00Z", "BillingPeriodEnd": "2026-12-01T00:00:00Z",
        "InvoiceIssuerName": "Unbroken", "ServiceCategory": "AI and Machine Learning",
    }  # fmt: skip
    assert (fresh["SkuMeter"], cached["SkuMeter"]) == ("Input Tokens", "Cached Input Tokens")
    assert EXACT.multiply(Decimal(output["ListCost"]), Decimal("1.5")) == Decimal(
        output["BilledCost"]
    )


def test_refunds_credits_and_adjustments():
    acme = add_tenant()
    given_back = books.give_back(books.charge(acme, output=5, prompt=0))
    corrected = books.give_back(
        books.charge(acme, output=6, prompt=0, at=books.NOVEMBER - timedelta(days=30)),
        correction=True,
    )
    books.credit(books.charge(acme, output=8, prompt=0), "0.00001", "goodwill")
    books.adjust(acme, "-2", "agreed")
    rows = rows_of()
    assert violations(rows[0], rows) == []
    kinds = [
        (row["ChargeCategory"], row["ChargeClass"], row["BilledCost"][0] == "-") for row in rows
    ]
    assert kinds == [
        ("Usage", "", False), ("Usage", "", True), ("Usage", "Correction", True), ("Usage", "", False),
        ("Credit", "", True), ("Adjustment", "", True),
    ]  # fmt: skip
    assert (rows[1]["x_LineId"], rows[1]["ConsumedQuantity"]) == (str(given_back.pk), "-5")
    assert rows[1]["ChargeDescription"] == "Output Tokens of m, given back: not delivered"
    assert (rows[2]["x_LineId"], rows[2]["ConsumedQuantity"]) == (str(corrected.pk), "-6")
    assert (rows[4]["PricingQuantity"], rows[4]["SkuId"]) == ("", "")
    assert (rows[5]["BilledCost"], rows[5]["ChargeDescription"]) == ("-2", "Adjustment: agreed")


def test_a_line_without_tokens_or_price_is_a_row_all_the_same():
    books.charge(output=0, prompt=0)
    (row,) = rows_of()
    assert (row["BilledCost"], row["ConsumedQuantity"], row["SkuMeter"]) == (
        "0",
        "0",
        "Output Tokens",
    )
    assert violations(row, [row]) == []


def test_an_amount_that_its_prices_do_not_make_is_one_amount():
    books.charge(output=7, prompt=10, amount=Decimal("0.5"))
    rows = rows_of()
    # The settlement says 0.5, its line was computed: the ledger counts.
    assert violations(rows[0], rows) == []
    books.charge(output=7, prompt=10, input_per_million=Decimal(9))
    rows = rows_of()
    assert violations(rows[0], rows) == []
    assert [row["ChargeCategory"] for row in rows] == ["Usage", "Usage", "Adjustment"]
    assert total(Decimal(row["BilledCost"]) for row in rows) == books.ledger_sums()["EUR"]
