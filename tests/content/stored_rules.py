"""Content rules in a stack's database, and when its gateways apply them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from streaming.core.content_rules import Rule

KNOWN_WITHIN = 30.0

Sql = Callable[..., list[tuple[Any, ...]]]


def put(sql: Sql, rules: Iterable[Rule], tenant: str | None = "acme") -> None:
    """Have these rules of a tenant in force (None: for all), and no others of it."""
    sql(
        "DELETE FROM streaming_contentrule WHERE tenant_id IS NOT DISTINCT FROM"
        " (SELECT id FROM streaming_tenant WHERE name = %s) RETURNING id",
        tenant,
    )
    for rule in rules:
        sql(
            "INSERT INTO streaming_contentrule (tenant_id, name, kind, pattern, case_sensitive, action,"
            " replacement, is_active, created_at) VALUES ((SELECT id FROM streaming_tenant WHERE"
            " name = %s), %s, %s, %s, %s, %s, %s, true, now()) RETURNING id",
            tenant, rule.name, "regex" if rule.is_regex else "word", rule.pattern,
            rule.case_sensitive, rule.action.value, rule.replacement,
        )  # fmt: skip


def wait_until_applied(says: Callable[[], str], shown: str) -> None:
    """Return when the gateway applies the rules: its answer is ``shown``."""
    deadline = time.monotonic() + KNOWN_WITHIN
    while (said := says()) != shown:
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
