"""Billing in the admin, one module per table. What was booked is shown, and only added to."""

from billing.admin import (  # noqa: F401  (importing a module registers its table)
    account,
    alert,
    audit,
    bulk_credit,
    credit_request,
    delivery,
    export,
    ledger,
    period,
    price,
    quota,
    settlement,
    sink,
    usage,
)
