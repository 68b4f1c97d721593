"""The database's own guards: what refuses to change what must not change."""

from __future__ import annotations

from streaming.services.sql import rows

GUARDS = {
    "billing_auditentry": ("append_only", "append_only_truncate"),
    "billing_audithead": ("forward_only", "forward_only_truncate"),
    "billing_ledgerentry": ("append_only", "append_only_truncate", "closed_to_lines"),
    "billing_settlement": ("append_only", "append_only_truncate", "closed_to_settlements"),
    "billing_periodtotal": ("append_only", "append_only_truncate"),
    "billing_billingperiod": ("closed_is_closed", "closed_is_closed_truncate", "stays_where_it_is"),
    "billing_priceplan": ("only_its_end", "only_its_end_truncate"),
}
"""The triggers of each guarded table. Migrations make them; models know nothing of them."""

CONSTRAINTS = {
    "billing_priceplan": "plans_do_not_overlap",
    "billing_billingperiod": "periods_do_not_overlap",
}

_TRIGGERS = """
SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.oid = ANY(SELECT to_regclass(name) FROM unnest(%s::text[]) name) AND t.tgenabled IN ('O', 'A')
"""

_CONSTRAINTS = """
SELECT c.relname, n.conname FROM pg_constraint n JOIN pg_class c ON c.oid = n.conrelid
WHERE c.oid = ANY(SELECT to_regclass(name) FROM unnest(%s::text[]) name)
"""


def missing() -> list[tuple[str, str]]:
    """The guards that are gone or disabled: table and name."""
    standing = {*rows(_TRIGGERS, list(GUARDS)), *rows(_CONSTRAINTS, list(CONSTRAINTS))}
    wanted = [(table, trigger) for table, triggers in GUARDS.items() for trigger in triggers]
    return [guard for guard in [*wanted, *CONSTRAINTS.items()] if guard not in standing]
