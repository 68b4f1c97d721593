"""The database's own guards: what refuses to change what must not change."""

from __future__ import annotations

from streaming.services.sql import rows

GUARDS = {
    "billing_auditentry": ("append_only", "append_only_truncate"),
    "billing_audithead": ("forward_only", "forward_only_truncate"),
    "billing_ledgerentry": ("append_only", "append_only_truncate", "closed_to_lines"),
    "billing_settlement": ("append_only", "append_only_truncate", "closed_to_settlements"),
    "billing_periodtotal": ("append_only", "append_only_truncate"),
    "billing_billingperiod": ("closed_is_closed", "closed_is_closed_truncate"),
    "billing_priceplan": ("only_its_end", "only_its_end_truncate"),
}
"""The triggers of each guarded table. Migrations make them; models know nothing of them."""

_TRIGGERS = """
SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.oid = ANY(SELECT to_regclass(name) FROM unnest(%s::text[]) name) AND t.tgenabled IN ('O', 'A')
"""


def missing() -> list[tuple[str, str]]:
    """The guards that are gone or disabled: table and trigger."""
    standing = set(rows(_TRIGGERS, list(GUARDS)))
    wanted = [(table, trigger) for table, triggers in GUARDS.items() for trigger in triggers]
    return [guard for guard in wanted if guard not in standing]
