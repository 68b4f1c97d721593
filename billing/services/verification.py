"""Whether the audit log, and every row whose hash is in it, is what it was when it was written."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import DataError, connection, models, transaction
from django.db.models import Case, Value, When

from billing.core.chain import GENESIS, Link, Walk
from billing.models import (
    AuditEntry,
    AuditHead,
    BillingPeriod,
    LedgerEntry,
    PeriodTotal,
    PricePlan,
    Settlement,
)
from billing.services import guards, heads
from billing.services.audit import row_hash, subject_of
from billing.services.heads import Head
from streaming.services.incidents import close_incident, open_incident
from streaming.services.sql import rows

logger = logging.getLogger("billing.audit")

INCIDENT = "audit_broken"
SUBJECT = "audit log"
PAGE = 500
TOLD = 50
"""More findings than these are counted only."""

_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, tzinfo=UTC)

_LOG = AuditEntry._meta.db_table
_COLUMNS = (
    "seq", "when", "action", "actor", "subject", "tenant_id", "session_id", "data", "previous", "hash",
)  # fmt: skip

Entry = tuple[Link, bytes, bytes]
"""A link, what it says it follows, and its hash, as they are stored."""

_WITNESSED: dict[str, type[models.Model]] = {
    "ledger.": LedgerEntry,
    "settlement": Settlement,
    "period.total": PeriodTotal,
    "period.closed": BillingPeriod,
}
"""Entries whose action begins so hold the hash of a row that no longer changes; each has one."""

PRICES = "price."
"""Entries whose action begins so hold the hash of a plan as it was from then on: the last counts."""
WITHDRAWN = "price.withdrawn"

_EXTRA = """
SELECT row.id FROM {table} row WHERE {within} AND NOT EXISTS (
    SELECT 1 FROM billing_auditentry e
    WHERE e.subject = %s || row.id::text AND starts_with(e.action, %s)
) ORDER BY row.id LIMIT %s
"""

_TWICE = """
SELECT subject, array_agg(seq ORDER BY seq) FROM billing_auditentry
WHERE starts_with(action, %s) GROUP BY subject HAVING count(*) > 1 ORDER BY min(seq) LIMIT %s
"""


_LAST_OF_PLANS = """
SELECT DISTINCT ON (subject) subject, seq, action, data FROM billing_auditentry
WHERE starts_with(action, %s) AND subject > %s ORDER BY subject, seq DESC LIMIT %s
"""


@dataclass(slots=True)
class Verdict:
    """``broken``: what is wrong, the first broken row first, at most ``TOLD``; ``found``: how many.

    ``checked``: audit entries; ``witnessed``: rows of the ledger, settlements, closed periods, their
    totals, and price plans; ``published``: heads that were compared.
    """

    checked: int = 0
    witnessed: int = 0
    published: int = 0
    found: int = 0
    broken: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.found

    def add(self, table: str, key: Any, wrong: str) -> None:
        self.found += 1
        if len(self.broken) < TOLD:
            self.broken.append(f"{table} {key} {wrong}")


def verify(published: Iterable[Head] = ()) -> Verdict:
    """Read all of the log, and all rows whose hashes are in it, as of one moment.

    ``published``: heads from log lines and manifests, which the log must still contain. Takes memory
    for a page of rows, whatever the length of the log.
    """
    with transaction.atomic():
        # Within somebody else's transaction (a test's) it has begun already.
        if len(connection.savepoint_ids) == 0:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        verdict = Verdict()
        by_seq, foreign = _by_seq(published, verdict)
        walk = Walk()
        for page in _pages():
            witnesses = _rows_of(page)
            for link, previous, stored in page:
                for key, wrong in walk.step(link, previous, stored):
                    verdict.add(_LOG, key, wrong)
                _compare_row(link, witnesses, verdict)
                for head in by_seq.pop(link.seq, ()):
                    _compare_head(head, stored, verdict)
                verdict.checked += 1
        _check_end(walk, by_seq, verdict)
        _check_exactly_one(verdict)
        _check_plans(verdict)
        for head in foreign:
            verdict.add("published head", head.seq, "was not signed with our key")
        for table, trigger in guards.missing():
            verdict.add(table, trigger, "(its guard) is gone or disabled")
        return verdict


def watch() -> dict[str, Any]:
    """Verify, open or close the incident ``audit_broken`` accordingly, and publish the head."""
    verdict = verify(heads.kept())
    if verdict.ok:
        close_incident(INCIDENT, SUBJECT)
    else:
        for broken in verdict.broken:
            logger.error("the audit log is broken: %s", broken)
        data = {"found": verdict.found, "first": verdict.broken[0]}
        open_incident(INCIDENT, SUBJECT, data=data)
    head = heads.publish()
    return {"checked": verdict.checked, "broken": verdict.found, "head": head.seq}


def _by_seq(
    published: Iterable[Head], verdict: Verdict
) -> tuple[dict[int, list[Head]], list[Head]]:
    """Those that we have signed, by number, and the others."""
    by_seq: dict[int, list[Head]] = defaultdict(list)
    foreign = []
    for head in published:
        verdict.published += 1
        if not head.is_ours:
            foreign.append(head)
        elif head not in by_seq[head.seq]:
            by_seq[head.seq].append(head)
    return by_seq, foreign


def _pages() -> Iterator[list[Entry]]:
    # A time that Python cannot read (infinity, 4000 BC) is as wrong as any other.
    readable = Case(When(at__range=(_FIRST, _LAST), then="at"), default=Value(_FIRST))
    entries = AuditEntry.objects.order_by("seq").annotate(when=readable).values_list(*_COLUMNS)
    page = entries[:PAGE]
    while found := [
        (Link(*columns), bytes(previous), bytes(stored)) for *columns, previous, stored in page
    ]:
        yield found
        page = entries.filter(seq__gt=found[-1][0].seq)[:PAGE]


def _witnessed_by(action: str) -> type[models.Model] | None:
    return next((model for prefix, model in _WITNESSED.items() if action.startswith(prefix)), None)


def _key_of(model: type[models.Model], subject: str) -> Any:
    """The key of the row that an entry is about; None when its subject does not name one."""
    named = subject.removeprefix(subject_of(model, ""))
    try:
        return model._meta.pk.to_python(named)
    except ValidationError:
        return None


def _rows_of(page: list[Entry]) -> dict[type[models.Model], dict[Any, models.Model]]:
    """The rows whose hashes are in a page of the log."""
    keys: dict[type[models.Model], set[Any]] = defaultdict(set)
    for link, _, _ in page:
        if (model := _witnessed_by(link.action)) is not None:
            keys[model].add(_key_of(model, link.subject))
    return {model: _read(model, wanted - {None}) for model, wanted in keys.items()}


def _read(model: type[models.Model], keys: set[Any]) -> dict[Any, models.Model]:
    try:
        return model._base_manager.in_bulk(keys)
    except DataError:
        if len(keys) == 1:  # what cannot even be read fits no hash
            return {key: model(pk=key) for key in keys}
        return {key: row for one in keys for key, row in _read(model, {one}).items()}


def _compare_row(
    link: Link, witnesses: dict[type[models.Model], dict[Any, models.Model]], verdict: Verdict
) -> None:
    model = _witnessed_by(link.action)
    if model is None:
        return
    key = _key_of(model, link.subject)
    _compare(model, key, witnesses[model].get(key), link.seq, link.data, verdict)


def _compare(
    model: type[models.Model],
    key: Any,
    row: models.Model | None,
    seq: int,
    data: str,
    verdict: Verdict,
) -> None:
    """A row with what entry ``seq`` says of it."""
    table = model._meta.db_table
    said = _said(data)
    if key is None or said is None:
        verdict.add(_LOG, seq, f"holds no hash of a row of {table}")
    elif row is None:
        verdict.add(table, key, f"is missing: entry {seq} of the log tells of it")
    elif not _fits(row, said):
        verdict.add(table, key, f"was changed: it does not fit its hash in entry {seq} of the log")
    verdict.witnessed += 1


def _fits(row: models.Model, said: str) -> bool:
    try:
        return row_hash(row) == said
    except (TypeError, ValidationError, ObjectDoesNotExist):  # NaN has no spelling
        return False


def _said(data: str) -> str | None:
    try:
        said = json.loads(data)["sha256"]
    except (ValueError, KeyError, TypeError):
        return None
    return said if isinstance(said, str) else None


def _compare_head(head: Head, stored: bytes, verdict: Verdict) -> None:
    if head.hash_hex != stored.hex():
        verdict.add(_LOG, head.seq, "is another than when its hash was published")


def _check_end(walk: Walk, by_seq: dict[int, list[Head]], verdict: Verdict) -> None:
    """The head row, and published heads that the walk did not come by."""
    row = AuditHead.objects.filter(pk=1).first()
    end, last = (0, GENESIS) if row is None else (row.seq, bytes(row.hash))
    if end > walk.seq:
        verdict.add(_LOG, _span(walk.seq + 1, end), "missing: the log was longer")
    elif end < walk.seq:
        verdict.add(_LOG, _span(end + 1, walk.seq), "too many: appended without the log's own lock")
    elif last != walk.hash:
        verdict.add(_LOG, end, "is another than the head of the log says")
    for head in by_seq.pop(0, ()):
        _compare_head(head, GENESIS, verdict)
    for seq in sorted(by_seq):
        if seq > walk.seq and by_seq[seq]:
            gone = _span(walk.seq + 1, seq)
            verdict.add(
                _LOG, gone, f"missing: entry {seq} was published, the log ends at {walk.seq}"
            )


def _span(first: int, last: int) -> str:
    return f"{first} is" if first == last else f"{first} to {last} are"


def _check_exactly_one(verdict: Verdict) -> None:
    """That no row was added beside the log, and that none is in it twice."""
    for prefix, model in _WITNESSED.items():
        _check_none_beside(model, prefix, verdict)
        for subject, entries in rows(_TWICE, prefix, TOLD):
            verdict.add(_LOG, entries[1], f"tells of {subject} again, as entry {entries[0]} did")


def _check_none_beside(model: type[models.Model], prefix: str, verdict: Verdict) -> None:
    table = model._meta.db_table
    # Of periods the log tells when they are closed.
    within = "row.closed_at IS NOT NULL" if model is BillingPeriod else "TRUE"
    statement = _EXTRA.format(table=table, within=within)
    for (key,) in rows(statement, subject_of(model, ""), prefix, TOLD):
        verdict.add(table, key, "is in no entry of the log: it was added beside it")


def _check_plans(verdict: Verdict) -> None:
    """That every price plan is what the last entry about it says."""
    after = ""
    while page := rows(_LAST_OF_PLANS, PRICES, after, PAGE):
        keys = {subject: _key_of(PricePlan, subject) for subject, *_ in page}
        plans = _read(PricePlan, set(keys.values()) - {None})
        for subject, seq, action, data in page:
            plan = plans.get(keys[subject])
            if action != WITHDRAWN:
                _compare(PricePlan, keys[subject], plan, seq, data, verdict)
            elif plan is not None:
                gone = f"is there again: it was withdrawn in entry {seq} of the log"
                verdict.add(PricePlan._meta.db_table, keys[subject], gone)
        after = page[-1][0]
    _check_none_beside(PricePlan, PRICES, verdict)
