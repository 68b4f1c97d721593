"""Tampering is found, and named."""

from __future__ import annotations

import pytest

from billing.services import audit
from billing.services.verification import verify
from tests.billing.audit.rows import AMOUNTS, credit, settle, tell

pytestmark = pytest.mark.django_db(transaction=True)


def test_what_nobody_has_touched_is_whole():
    for amount in AMOUNTS:
        settle(amount)
    credit(settle())
    tell()
    verdict = verify()
    assert verdict.broken == []
    assert verdict.ok
    assert (verdict.checked, verdict.witnessed) == (2 * 6 + 1 + 3, 2 * 6 + 1)


def test_an_empty_log_is_whole():
    assert verify().ok
    audit.append("node.drain", actor="system", subject="node:a")
    assert verify().checked == 1
