"""What our migrations have made in the database, and whether it is all still there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from billing.services import guards
from gateway_project.doctor.finding import Finding, failure, note, ok, warning
from gateway_project.doctor.postgres import DOC, is_reachable, unreachable
from streaming.services import partitions
from streaming.services.sql import rows

DEAD_ROWS = 100_000
BLOATED = """
SELECT relname, n_live_tup, n_dead_tup FROM pg_stat_user_tables
WHERE n_dead_tup > %s AND n_dead_tup > n_live_tup ORDER BY n_dead_tup DESC LIMIT 5
"""


def look() -> Iterator[Finding]:
    if not is_reachable():
        yield unreachable("migrations")
        return
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    unapplied = [f"{migration.app_label}.{migration.name}" for migration, _ in plan]
    yield judge_migrations(unapplied)
    if unapplied:
        return  # what they would make is not missing
    yield judge_guards(guards.missing())
    missing = [one.table for one in partitions.missing()]
    held = [one.table for one in partitions.held()]
    yield from judge_partitions(missing, held)
    yield from judge_bloat(rows(BLOATED, DEAD_ROWS))


def judge_migrations(unapplied: Sequence[str]) -> Finding:
    if unapplied:
        names = ", ".join(unapplied[:5]) + (", …" if len(unapplied) > 5 else "")
        return failure(
            "migrations", f"{len(unapplied)} are not applied: {names}", "`manage.py migrate`", DOC
        )
    return ok("migrations", "all are applied")


def judge_guards(missing: Sequence[tuple[str, str]]) -> Finding:
    """The triggers that keep the ledger and the audit log append-only."""
    if missing:
        told = ", ".join(f"{name} of {table}" for table, name in missing)
        return failure(
            "guards",
            f"gone or disabled: {told}",
            "ALTER TABLE … ENABLE TRIGGER …, or create it as the migrations do; then `manage.py verify_audit`, "
            "and find out who has done it.",
            "docs/audit.md",
        )
    return ok("guards", f"{len(guards.GUARDS)} tables refuse what must not be changed")


def judge_partitions(missing: Sequence[str], held: Sequence[str]) -> Iterator[Finding]:
    """``missing``: of the days to come. ``held``: whose day is over, and which are still there."""
    if missing:
        yield warning(
            "partitions",
            f"not made yet: {', '.join(missing)}; their tokens go into the default partition, which is never dropped",
            "See that the worker runs: its task purge_expired_content makes them, once an hour.",
            "docs/retention.md",
        )
    else:
        yield ok("partitions", f"of today and the next {partitions.AHEAD} days are there")
    if held:
        yield warning(
            "old partitions",
            f"still there, and nothing in them is to be kept: {', '.join(held)}",
            "Somebody reads them in a long transaction: see pg_stat_activity.",
            "docs/retention.md",
        )


def judge_bloat(bloated: Sequence[tuple[str, int, int]]) -> Iterator[Finding]:
    """``bloated``: table, live rows, dead rows, where the dead are more."""
    for table, live, dead in bloated:
        yield note(
            "dead rows",
            f"{table} has {dead:,} beside {live:,} live ones",
            f"VACUUM {table}; if it comes back, a lower autovacuum_vacuum_scale_factor for it.",
            DOC,
        )
