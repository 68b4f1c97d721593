"""What billing refuses. Messages are for the person who asked."""

from __future__ import annotations


class BillingError(Exception):
    """Billing cannot do what was asked."""


class NotAllowed(BillingError):
    """Not by this person."""


class PeriodNotReady(BillingError):
    """The period can't be closed yet; ``checklist`` says why."""

    def __init__(self, message: str, checklist: dict[str, object]) -> None:
        super().__init__(message)
        self.checklist = checklist


class CreditRefused(BillingError):
    """A credit that may not be: larger than its charge, or without a reason."""


class PlansOverlap(BillingError):
    """Two price plans of one list in force at once."""


class UnknownSession(BillingError):
    """Something is to be settled that is not there."""


class PriceRefused(BillingError):
    """A price that may not be: not a price, or one for a time that was settled by another."""


class ExportRefused(BillingError):
    """There is no such export: an unknown format, tenant or period."""


class ExportFailed(BillingError):
    """It could not be written, or did not come to what was booked. Nothing of it is left."""
