"""Engines fail, answers go on: real simulators, a real gateway process, real databases."""

import pytest

pytest.register_assert_rewrite(
    *(f"tests.failover.{name}" for name in ("client", "cuts", "groups", "log"))
)
