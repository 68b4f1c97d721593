"""Every format holds the ledger, to the last digit; a closed month is the same bytes for ever."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import hypothesis
import polars
import pytest
from django.conf import settings
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from billing.core.money import plain
from billing.exports.columns import COLUMNS, Row
from billing.exports.formats import FORMATS
from billing.exports.run import export
from billing.models import BillingAccount, BillingPeriod, LedgerEntry
from streaming.models import Tenant
from tests.billing.exports import books, read_back
from tests.billing.rows import add_plan, add_tenant

pytestmark = pytest.mark.django_db


def make(format: str, **arguments):
    return export(period_name="2026-11", format=format, actor="user:pat", **arguments)


@pytest.mark.parametrize("format", FORMATS)
def test_it_adds_up_to_the_ledger(format):
    tenants = books.a_month()
    books.charge(tenants["acme"], at=books.NOVEMBER.replace(month=10))  # another month
    everything, one = make(format), make(format, tenant_id=tenants["acme"].pk)
    booked = books.ledger_sums(period__name="2026-11")
    assert read_back.sums(everything) == booked
    assert read_back.sums(one) == books.ledger_sums(period__name="2026-11", tenant=tenants["acme"])
    assert everything.manifest["amounts"] == {code: plain(sum_) for code, sum_ in booked.items()}


@given(
    prices=st.lists(
        st.decimals(0, 10**6, places=8, allow_nan=False, allow_infinity=False),
        min_size=3,
        max_size=3,
    ),
    coefficient=st.decimals(0, 999, places=4, allow_nan=False, allow_infinity=False),
    output=st.integers(0, 10**9),
    prompt=st.integers(0, 10**7),
    booked=st.decimals(-(10**12), 10**12, places=18, allow_nan=False, allow_infinity=False),
)
@hypothesis.settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_whatever_the_figures_are(prices, coefficient, output, prompt, booked):
    tenant = add_tenant(f"t{Tenant.objects.count()}")
    plan = add_plan(
        tenant,
        input=str(prices[0]),
        cached=str(prices[1]),
        output=str(prices[2]),
        coefficient=coefficient,
    )
    books.give_back(
        books.charge(tenant, plan=plan, output=output, prompt=prompt, cached=prompt // 3)
    )
    books.charge(tenant, plan=plan, output=output, prompt=prompt)
    books.adjust(tenant, str(booked), "whatever")
    booked_in_all = books.ledger_sums(tenant=tenant)
    for format in FORMATS:
        assert read_back.sums(make(format, tenant_id=tenant.pk)) == booked_in_all, format


@pytest.mark.parametrize("format", FORMATS)
def test_a_closed_month_is_the_same_bytes_again(format):
    tenants = books.a_month()
    for period in BillingPeriod.objects.filter(name="2026-11"):
        books.close(period, account_name="As it was", issuer="Us")
    first = make(format)
    contents = [path.read_bytes() for path in read_back.files(first)]
    # What may change afterwards: names, and everything in other months.
    BillingAccount.objects.update_or_create(tenant=tenants["acme"], defaults={"legal_name": "New"})
    books.charge(tenants["acme"], at=books.NOVEMBER.replace(month=12))
    again = make(format)
    assert again.pk != first.pk
    assert [path.read_bytes() for path in read_back.files(again)] == contents
    assert again.manifest["closed"]
    checksums = [
        [(file["name"], file["sha256"]) for file in made.manifest["files"]]
        for made in (first, again)
    ]
    assert checksums[0] == checksums[1]


def test_the_formats_say_the_same():
    books.a_month()
    of = {format: read_back.lines(make(format)) for format in FORMATS if format != "focus"}
    ids = [str(pk) for pk in LedgerEntry.objects.order_by("pk").values_list("pk", flat=True)]
    for lines in of.values():
        assert [line["line_id"] for line in lines] == ids
    for csv, json, xlsx, parquet in zip(
        of["csv"], of["jsonl"], of["xlsx"], of["parquet"], strict=True
    ):
        assert list(csv) == list(json) == list(parquet) == [column.name for column in COLUMNS]
        assert list(xlsx) == [*csv, "amount_number"]
        for name, cell in csv.items():
            if name == "reason":
                continue
            assert cell == ("" if json[name] is None else str(json[name])), name
            assert cell == ("" if xlsx[name] is None else str(xlsx[name])), name
            assert cell == _as_text(parquet[name]), name


def _as_text(value: object) -> str:
    if isinstance(value, Decimal):
        return plain(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return "" if value is None else str(value)


def test_columns_say_what_was_booked():
    assert [column.name for column in COLUMNS] == list(Row._fields)
    acme = add_tenant("acme")
    plan = add_plan(acme, **books.ODD, coefficient=Decimal("0.9"))
    charged = books.charge(
        acme, output=7, prompt=10, cached=4, plan=plan, cost_centre="team-a", kind="suspended",
        state="suspended", cause="client_gone", evidence="socket", delivered_tokens=7, sent_tokens=8,
        log_tokens=9, compensated_tokens=9,
    )  # fmt: skip
    given_back = books.give_back(charged, correction=True)
    line, correction = read_back.lines(make("jsonl"))
    assert line["session_began_at"] == line["occurred_at"] == "2026-11-12T10:30:15.250000Z"
    assert line == line | {
        "schema_version": 1, "line_id": str(charged.pk), "kind": "charge", "period": "2026-11",
        "period_start": "2026-11-01T00:00:00.000000Z", "period_end": "2026-12-01T00:00:00.000000Z",
        "issuer": "Unbroken", "account_id": acme.pk, "account": "acme", "account_name": "acme",
        "cost_centre": "team-a", "api_key_prefix": "ub-test-1", "session_id": str(charged.session_id),
        "settlement_no": 1, "settled_because": "suspended", "outcome": "suspended",
        "cause": "client_gone", "model_requested": "chat-default", "model_served": "m",
        "from_token": 0, "to_token": 7, "billed_input_tokens": 10, "billed_cached_input_tokens": 4,
        "billed_output_tokens": 7, "session_log_tokens": 9, "session_sent_tokens": 8,
        "session_delivered_tokens": 7, "session_compensated_tokens": 9,
        "delivery_basis": "socket", "policy": "delivered", "price_id": plan.pk,
        "input_price_per_million": "0.12345678", "coefficient": "0.9", "currency": "EUR",
        "amount": plain(charged.amount), "charge_class": None, "corrects_line_id": None, "reason": None,
    }  # fmt: skip
    assert correction == correction | {
        "line_id": str(given_back.pk), "kind": "credit", "from_token": 7, "to_token": 0,
        "billed_input_tokens": -10, "billed_cached_input_tokens": -4, "billed_output_tokens": -7,
        "amount": f"-{plain(charged.amount)}", "charge_class": "Correction",
        "corrects_line_id": str(charged.pk), "reason": "not delivered", "settlement_no": 2,
    }  # fmt: skip
    assert UUID(line["line_id"]).version == 7


def test_nothing_personal_is_exported():
    names = " ".join(column.name + column.sql for column in COLUMNS)
    assert "end_user" not in names
    assert "actor" not in names


def test_parquet_has_types():
    books.a_month()
    (path,) = read_back.files(make("parquet"))
    frame = polars.read_parquet(path)
    assert frame.schema["amount"] == polars.Decimal(38, 18)
    assert frame.schema["billed_output_tokens"] == polars.Int64
    assert frame.schema["recorded_at"] == polars.Datetime("us", "UTC")
    by_currency = frame.group_by("currency").agg(polars.col("amount").sum()).to_dicts()
    assert {row["currency"]: row["amount"] for row in by_currency} == books.ledger_sums()


def test_an_amount_that_parquet_cannot_hold_is_not_bent():
    books.adjust(add_tenant(), "1" + "0" * 21, "more than there is")
    with pytest.raises(Exception, match="Parquet cannot hold it"):
        make("parquet")
    assert read_back.sums(make("csv")) == books.ledger_sums()


def test_the_columns_are_documented():
    text = (settings.BASE_DIR / "docs" / "exports.md").read_text()
    told = re.findall(
        r"^\| `(\w+)` \| [\w, ]+ \| (.+) \|$", text.partition("## Columns")[2], re.MULTILINE
    )
    assert told == [(column.name, column.help) for column in COLUMNS]
