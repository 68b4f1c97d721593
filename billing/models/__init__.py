"""The tables of the billing app."""

from billing.models.account import BillingAccount
from billing.models.audit import AuditEntry, AuditHead
from billing.models.bulk_credit import BulkCredit, BulkCreditLine
from billing.models.event import EventDelivery, UsageSink
from billing.models.export import Export
from billing.models.ledger import CreditRequest, LedgerEntry
from billing.models.period import BillingPeriod, PeriodTotal
from billing.models.price import PriceList, PricePlan
from billing.models.quota import BudgetAlert, QuotaReservation, QuotaUse
from billing.models.usage import Settlement, UsageRecord, Waste

__all__ = [
    "AuditEntry",
    "AuditHead",
    "BillingAccount",
    "BillingPeriod",
    "BudgetAlert",
    "BulkCredit",
    "BulkCreditLine",
    "CreditRequest",
    "EventDelivery",
    "Export",
    "LedgerEntry",
    "PeriodTotal",
    "PriceList",
    "PricePlan",
    "QuotaReservation",
    "QuotaUse",
    "Settlement",
    "UsageRecord",
    "UsageSink",
    "Waste",
]
