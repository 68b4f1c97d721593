"""FOCUS 1.2, the FinOps Open Cost and Usage Specification, as CSV.

FOCUS wants cost = unit price x quantity in every row, so a settlement makes a row a meter: input,
cached input and output tokens. Their costs add up to the line's amount, to the last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from billing.core.chain import moment
from billing.core.money import EXACT, plain, total
from billing.exports.columns import Row
from billing.exports.csv import CsvWriter
from streaming.core.spreadsheet import guarded

VERSION = "1.2"
SERVICE_NAME = "LLM inference"
PRICING_UNIT = "1000000 Tokens"


@dataclass(frozen=True, slots=True)
class Meter:
    """One thing that is counted and priced; without a name: an amount that has no quantity."""

    name: str = ""
    tokens: int | None = None
    millions: Decimal | None = None
    list_price: Decimal | None = None
    unit_price: Decimal | None = None
    list_cost: Decimal = Decimal(0)
    cost: Decimal = Decimal(0)

    @classmethod
    def of(cls, name: str, tokens: int, price: Decimal, coefficient: Decimal) -> Meter:
        """``price`` is per million. Raises ``decimal.Inexact``."""
        unit_price = EXACT.multiply(price, coefficient)
        millions = EXACT.scaleb(Decimal(tokens), -6)
        return cls(
            name=name,
            tokens=tokens,
            millions=millions,
            list_price=price,
            unit_price=unit_price,
            list_cost=EXACT.multiply(price, millions),
            cost=EXACT.multiply(unit_price, millions),
        )


def meters(row: Row) -> list[Meter]:
    """What a line counts, without what it has none of; at least one.

    A line that a person booked, and one whose amount is not what its prices make it (a person had
    given back some of it before; reconciliation tells of all others), is one row without a unit price.
    """
    if (
        row.billed_input_tokens is None
        or row.billed_cached_input_tokens is None
        or row.billed_output_tokens is None
        or row.input_price_per_million is None
        or row.cached_input_price_per_million is None
        or row.output_price_per_million is None
        or row.coefficient is None
    ):
        return [Meter(list_cost=row.amount, cost=row.amount)]
    fresh = row.billed_input_tokens - row.billed_cached_input_tokens
    counted = [
        Meter.of("Output Tokens", row.billed_output_tokens, row.output_price_per_million, row.coefficient),
        Meter.of("Input Tokens", fresh, row.input_price_per_million, row.coefficient),
        Meter.of("Cached Input Tokens", row.billed_cached_input_tokens, row.cached_input_price_per_million, row.coefficient),
    ]  # fmt: skip
    if total(meter.cost for meter in counted) != row.amount:
        return [Meter(list_cost=row.amount, cost=row.amount)]
    return [meter for meter in counted if meter.tokens] or counted[:1]


COLUMNS: tuple[tuple[str, Callable[[Row, Meter], str]], ...] = (
    ("BilledCost", lambda row, meter: plain(meter.cost)),
    # A number would be read as one: the account's short name is as unique, and as fixed.
    ("BillingAccountId", lambda row, meter: guarded(row.account)),
    ("BillingAccountName", lambda row, meter: guarded(row.account_name)),
    ("BillingCurrency", lambda row, meter: row.currency),
    ("BillingPeriodEnd", lambda row, meter: _time(row.period_end)),
    ("BillingPeriodStart", lambda row, meter: _time(row.period_start)),
    ("ChargeCategory", lambda row, meter: _category(row, meter)),
    ("ChargeClass", lambda row, meter: row.charge_class or ""),
    ("ChargeDescription", lambda row, meter: guarded(_description(row, meter))),
    ("ChargeFrequency", lambda row, meter: "Usage-Based" if meter.name else "One-Time"),
    ("ChargePeriodEnd", lambda row, meter: _time(row.occurred_at + timedelta(seconds=1))),
    ("ChargePeriodStart", lambda row, meter: _time(row.occurred_at)),
    ("ConsumedQuantity", lambda row, meter: _number(meter.tokens)),
    ("ConsumedUnit", lambda row, meter: "Tokens" if meter.name else ""),
    ("ContractedCost", lambda row, meter: plain(meter.cost)),
    ("ContractedUnitPrice", lambda row, meter: _number(meter.unit_price)),
    ("EffectiveCost", lambda row, meter: plain(meter.cost)),
    ("InvoiceIssuerName", lambda row, meter: guarded(row.issuer)),
    ("ListCost", lambda row, meter: plain(meter.list_cost)),
    ("ListUnitPrice", lambda row, meter: _number(meter.list_price)),
    ("PricingCategory", lambda row, meter: "Standard" if meter.name else ""),
    ("PricingQuantity", lambda row, meter: _number(meter.millions)),
    ("PricingUnit", lambda row, meter: PRICING_UNIT if meter.name else ""),
    ("ProviderName", lambda row, meter: guarded(row.issuer)),
    ("PublisherName", lambda row, meter: guarded(row.issuer)),
    ("ServiceCategory", lambda row, meter: "AI and Machine Learning"),
    ("ServiceName", lambda row, meter: SERVICE_NAME),
    ("ServiceSubcategory", lambda row, meter: "Generative AI"),
    ("SkuId", lambda row, meter: _sku(row, meter)),
    ("SkuMeter", lambda row, meter: meter.name),
    ("SkuPriceId", lambda row, meter: _sku_price(row, meter)),
    ("SubAccountId", lambda row, meter: guarded(row.cost_centre or "")),
    ("SubAccountName", lambda row, meter: guarded(row.cost_centre or "")),
    ("x_ApiKeyPrefix", lambda row, meter: row.api_key_prefix or ""),
    ("x_Cause", lambda row, meter: row.cause or ""),
    ("x_Coefficient", lambda row, meter: _number(row.coefficient)),
    ("x_CorrectsLineId", lambda row, meter: row.corrects_line_id or ""),
    ("x_DeliveryBasis", lambda row, meter: row.delivery_basis or ""),
    ("x_LineId", lambda row, meter: row.line_id),
    ("x_LineKind", lambda row, meter: row.kind),
    ("x_ModelRequested", lambda row, meter: guarded(row.model_requested or "")),
    ("x_ModelServed", lambda row, meter: guarded(row.model_served or "")),
    ("x_Outcome", lambda row, meter: row.outcome or ""),
    ("x_Policy", lambda row, meter: row.policy or ""),
    ("x_Reason", lambda row, meter: guarded(row.reason or "")),
    ("x_RecordedAt", lambda row, meter: moment(row.recorded_at)),
    ("x_SchemaVersion", lambda row, meter: str(row.schema_version)),
    ("x_SessionId", lambda row, meter: row.session_id or ""),
    ("x_SettlementNo", lambda row, meter: _number(row.settlement_no)),
)


class FocusWriter(CsvWriter):
    """One CSV file, a row a meter of each line; null is nothing between the commas."""

    heading = [name for name, _ in COLUMNS]

    def cells(self, row: Row) -> Iterator[Sequence[str]]:
        for meter in meters(row):
            yield [spelled(row, meter) for _, spelled in COLUMNS]


def _category(row: Row, meter: Meter) -> str:
    if meter.name:
        return "Usage"  # negative where tokens are given back: FOCUS has refunds there
    return "Credit" if row.kind == "credit" else "Adjustment"


def _description(row: Row, meter: Meter) -> str:
    if not meter.name:
        return f"{row.kind.capitalize()}: {row.reason or row.line_id}"
    what = f"{meter.name} of {row.model_served}"
    return what if row.kind == "charge" else f"{what}, given back: {row.reason}"


def _sku(row: Row, meter: Meter) -> str:
    return guarded(f"{row.model_served}/{meter.name}") if meter.name else ""


def _sku_price(row: Row, meter: Meter) -> str:
    return (
        guarded(f"{row.price_id or 'unpriced'}/{row.model_served}/{meter.name}")
        if meter.name
        else ""
    )


def _time(at: datetime) -> str:
    # FOCUS has whole seconds. A charge period is the second that the tokens were delivered in.
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def _number(value: Decimal | int | None) -> str:
    return "" if value is None else plain(Decimal(value))
