"""A receiver, and private addresses to reach it at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from billing.services import deliveries
from tests.billing.events.receiver import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def private(settings: Any) -> None:
    """Webhooks may be at private addresses."""
    settings.STREAMING = replace(settings.STREAMING, webhook_private_addresses=True)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may take as long as a slow machine needs."""
    monkeypatch.setattr(deliveries, "START_SECONDS", 30.0)
    monkeypatch.setattr(deliveries, "ANSWER_SECONDS", 30.0)
