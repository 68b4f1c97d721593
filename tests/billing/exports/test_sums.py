"""Every format holds the ledger, to the last digit."""

from __future__ import annotations

from decimal import Decimal

import pytest

from billing.exports.formats import FORMATS
from billing.exports.run import export
from tests.billing.exports import books, read_back

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data_dir(settings, tmp_path):
    settings.DATA_DIR = tmp_path


def make(format: str, **arguments):
    return export(period_name="2026-11", format=format, actor="user:pat", **arguments)


@pytest.mark.parametrize("format", FORMATS)
def test_it_adds_up_to_the_ledger(format):
    tenants = books.a_month()
    books.charge(tenants["acme"], at=books.NOVEMBER.replace(month=10))  # another month
    everything, one = make(format), make(format, tenant_id=tenants["acme"].pk)
    assert read_back.sums(everything) == books.ledger_sums(period__name="2026-11")
    assert read_back.sums(one) == books.ledger_sums(period__name="2026-11", tenant=tenants["acme"])
    assert {code: Decimal(text) for code, text in everything.manifest["amounts"].items()} == (
        books.ledger_sums(period__name="2026-11")
    )
