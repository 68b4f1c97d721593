"""FOCUS 1.2 as a reader may rely on it: what its columns' requirements say, as far as one file shows.

From the specification's column pages (version 1.2, May 2025) and its attributes NumericFormat,
DateTimeFormat, CurrencyFormat, StringHandling and UnitFormat.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

from billing.core.money import EXACT

MANDATORY = frozenset({
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd",
    "ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost",
    "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName",
})  # fmt: skip
OTHERS = frozenset({
    "AvailabilityZone", "BillingAccountType", "CapacityReservationId", "CapacityReservationStatus",
    "ChargeFrequency", "CommitmentDiscountCategory", "CommitmentDiscountId", "CommitmentDiscountName",
    "CommitmentDiscountQuantity", "CommitmentDiscountStatus", "CommitmentDiscountType",
    "CommitmentDiscountUnit", "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "InvoiceId",
    "ListUnitPrice", "PricingCategory", "PricingCurrency", "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost", "PricingCurrencyListUnitPrice", "RegionId", "RegionName", "ResourceId",
    "ResourceName", "ResourceType", "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceDetails",
    "SkuPriceId", "SubAccountId", "SubAccountName", "SubAccountType", "Tags",
})  # fmt: skip
NEVER_NULL = MANDATORY - {"ChargeClass", "PricingQuantity", "PricingUnit"}
DECIMALS = (
    "BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "PricingQuantity", "ConsumedQuantity",
    "ListUnitPrice", "ContractedUnitPrice",
)  # fmt: skip
TIMES = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
ALLOWED = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"", "Standard", "Dynamic", "Committed", "Other"},
    "ServiceCategory": {"AI and Machine Learning"},
    "ServiceSubcategory": {"Generative AI"},
}
NUMBER = re.compile(r"-?\d+(\.\d+)?(E-?\d+)?")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
# What a charge for usage must have, unless it is a correction.
OF_USAGE = (
    "PricingQuantity", "PricingUnit", "ListUnitPrice", "ContractedUnitPrice", "PricingCategory", "SkuId",
    "SkuPriceId", "ConsumedQuantity", "ConsumedUnit",
)  # fmt: skip
BELONG = (
    ("PricingQuantity", "PricingUnit"), ("ConsumedQuantity", "ConsumedUnit"), ("SkuId", "SkuMeter"),
    ("SubAccountId", "SubAccountName"),
)  # fmt: skip
PRODUCTS = (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost"))


def violations(heading: Iterable[str], rows: Iterable[Mapping[str, str]]) -> list[str]:
    """What is against the specification, in words; empty: nothing."""
    names = list(heading)
    found = [f"{name} is missing" for name in sorted(MANDATORY - set(names))]
    found += [
        f"{name} is no column of FOCUS and has no x_"
        for name in names
        if name not in MANDATORY | OTHERS and not name.startswith("x_")
    ]
    if len(set(names)) != len(names):
        found.append("a column is there twice")
    skus: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        found += [f"row {number}: {wrong}" for wrong in _wrong_with(row)]
        if row["SkuPriceId"] and skus.setdefault(row["SkuPriceId"], row["SkuId"]) != row["SkuId"]:
            found.append(f"row {number}: {row['SkuPriceId']} has two SKUs")
    return found


def _wrong_with(row: Mapping[str, str]) -> Iterable[str]:
    for name in NEVER_NULL:
        if not row[name].strip():
            yield f"{name} is null"
    odd = [name for name in DECIMALS if row[name] and not NUMBER.fullmatch(row[name])]
    for name in odd:
        yield f"{name} is no number: {row[name]!r}"
    for name in TIMES:
        if not TIME.fullmatch(row[name]):
            yield f"{name} is no time: {row[name]!r}"
    for name, allowed in ALLOWED.items():
        if row[name] not in allowed:
            yield f"{name} is {row[name]!r}"
    if not re.fullmatch("[A-Z]{3}", row["BillingCurrency"]):
        yield f"BillingCurrency is {row['BillingCurrency']!r}"
    for kind in ("BillingPeriod", "ChargePeriod"):
        if row[f"{kind}Start"] >= row[f"{kind}End"]:
            yield f"{kind} has no duration: its end is exclusive"
    for one, other in BELONG:
        if bool(row[one]) != bool(row[other]):
            yield f"of {one} and {other} one is null"
    if not odd and all(row[name] for name in DECIMALS[:4]):
        yield from _wrong_by_category(row)


def _wrong_by_category(row: Mapping[str, str]) -> Iterable[str]:
    correction, usage = row["ChargeClass"] == "Correction", row["ChargeCategory"] == "Usage"
    if usage and not correction:
        for name in OF_USAGE:
            if not row[name]:
                yield f"{name} of usage is null"
    if not usage and row["ConsumedQuantity"]:
        yield "ConsumedQuantity of something that is no usage"
    if row["ChargeCategory"] == "Purchase" and row["ChargeFrequency"] == "Usage-Based":
        yield "a purchase cannot be Usage-Based"
    for price, cost in PRODUCTS:
        if row[price] and row["PricingQuantity"] and not correction:
            product = EXACT.multiply(Decimal(row[price]), Decimal(row["PricingQuantity"]))
            if product != Decimal(row[cost]):
                yield f"{cost} is {row[cost]}, not {price} x PricingQuantity = {product}"
        elif not row[price] and Decimal(row[cost]) != Decimal(row["BilledCost"]):
            yield f"{cost} without {price} is not BilledCost"
        if row[price].startswith("-"):
            yield f"{price} is negative"
    # No commitments and no amortisation here.
    if Decimal(row["EffectiveCost"]) != Decimal(row["BilledCost"]):
        yield "EffectiveCost is not BilledCost"
