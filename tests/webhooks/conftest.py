"""A receiver, and private addresses to reach it at."""

from __future__ import annotations

import pytest

from streaming.services import webhook_deliveries
from tests.billing.events.conftest import private, receiver

__all__ = ["private", "receiver"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may take as long as a slow machine needs."""
    monkeypatch.setattr(webhook_deliveries, "START_SECONDS", 30.0)
    monkeypatch.setattr(webhook_deliveries, "ANSWER_SECONDS", 30.0)
