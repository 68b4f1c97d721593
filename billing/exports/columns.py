"""The columns of an export: one list for every format but FOCUS, which has a specification.

A new column is added at the end; a change of meaning raises ``SCHEMA_VERSION``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

SCHEMA_VERSION = 1


class Kind(enum.Enum):
    """What a cell holds."""

    CODE = "code"  # text that this program made: an identifier, a name of a state
    TEXT = "text"  # text that somebody else chose
    INTEGER = "integer"
    DECIMAL = "decimal"  # exact
    TIME = "time"


class Row(NamedTuple):
    """One ledger line. What does not apply is None, text is never empty."""

    schema_version: int
    line_id: str
    kind: str
    period: str
    period_start: datetime
    period_end: datetime
    issuer: str
    account_id: int
    account: str
    account_name: str
    cost_centre: str | None
    api_key_prefix: str | None
    session_id: str | None
    settlement_no: int | None
    settled_because: str | None
    outcome: str | None
    cause: str | None
    model_requested: str | None
    model_served: str | None
    from_token: int | None
    to_token: int | None
    billed_input_tokens: int | None
    billed_cached_input_tokens: int | None
    billed_output_tokens: int | None
    session_log_tokens: int | None
    session_sent_tokens: int | None
    session_delivered_tokens: int | None
    session_compensated_tokens: int | None
    session_generated_tokens: int | None
    session_discarded_tokens: int | None
    session_regenerated_tokens: int | None
    delivery_basis: str | None
    policy: str | None
    price_id: int | None
    input_price_per_million: Decimal | None
    cached_input_price_per_million: Decimal | None
    output_price_per_million: Decimal | None
    coefficient: Decimal | None
    currency: str
    amount: Decimal
    charge_class: str | None
    corrects_line_id: str | None
    reason: str | None
    session_began_at: datetime | None
    occurred_at: datetime
    recorded_at: datetime
    level: str | None
    variant: str | None


@dataclass(frozen=True, slots=True)
class Column:
    """``sql``: over the aliases of ``billing.exports.rows``; ``help``: for docs/exports.md."""

    name: str
    kind: Kind
    sql: str
    help: str


COLUMNS = (
    Column("schema_version", Kind.INTEGER, str(SCHEMA_VERSION), "Of this list of columns."),
    Column("line_id", Kind.CODE, "e.id::text", "The ledger line (UUID v7), in whose order the rows are. Unique; a safe idempotency key. `ledger:<line_id>` is its subject in the audit log."),
    Column("kind", Kind.CODE, "e.kind", "`charge`, `credit` (takes back from a charge) or `adjustment` (booked by a person)."),
    Column("period", Kind.CODE, "p.name", "The month that it is booked in, such as 2026-11."),
    Column("period_start", Kind.TIME, "p.starts_at", "When that month began in the account's time zone."),
    Column("period_end", Kind.TIME, "p.ends_at", "When it ended; exclusive."),
    Column("issuer", Kind.TEXT, "coalesce(nullif(p.issuer, ''), %(issuer)s)", "Who bills: `INVOICE_ISSUER`, as of the close of the period."),
    Column("account_id", Kind.INTEGER, "e.tenant_id", "The tenant's number."),
    Column("account", Kind.TEXT, "t.name", "The tenant's short name. It never changes."),
    Column("account_name", Kind.TEXT, "coalesce(nullif(p.account_name, ''), nullif(a.legal_name, ''), nullif(t.display_name, ''), t.name)", "Its legal name, as of the close of the period."),
    Column("cost_centre", Kind.TEXT, "nullif(e.cost_centre, '')", "The cost centre of the API key, as of the session."),
    Column("api_key_prefix", Kind.CODE, "nullif(s.api_key_prefix, '')", "The public start of the API key."),
    Column("session_id", Kind.CODE, "e.session_id::text", "The answer that was charged."),
    Column("settlement_no", Kind.INTEGER, "s.n", "Which settlement of the session it is, from 1; (session_id, settlement_no) is unique."),
    Column("settled_because", Kind.CODE, "s.kind", "`ended`, `suspended`, `delivered` (evidence came later) or `denied` (less had been delivered than was charged)."),
    Column("outcome", Kind.CODE, "nullif(s.state, '')", "The session's state when it was settled."),
    Column("cause", Kind.CODE, "nullif(s.cause, '')", "Why it was interrupted, if it was."),
    Column("model_requested", Kind.TEXT, "nullif(s.model_requested, '')", "The name that the client asked for."),
    Column("model_served", Kind.TEXT, "nullif(e.model, '')", "The model that answered, and was priced."),
    Column("from_token", Kind.INTEGER, "s.from_tokens", "Output tokens of the session that were billed before this line."),
    Column("to_token", Kind.INTEGER, "s.to_tokens", "And after it."),
    Column("billed_input_tokens", Kind.INTEGER, "s.prompt_tokens", "Input tokens of this line, cached ones included; negative where they are given back."),
    Column("billed_cached_input_tokens", Kind.INTEGER, "s.cached_tokens", "Of them, at the cached price."),
    Column("billed_output_tokens", Kind.INTEGER, "s.output_tokens", "Output tokens of this line (`to_token - from_token`); negative where they are given back."),
    Column("session_log_tokens", Kind.INTEGER, "s.log_tokens", "The session so far: tokens in its log."),
    Column("session_sent_tokens", Kind.INTEGER, "s.sent_tokens", "The session so far: tokens in events that were written whole."),
    Column("session_delivered_tokens", Kind.INTEGER, "s.delivered_tokens", "The session so far: tokens with evidence of delivery."),
    Column("session_compensated_tokens", Kind.INTEGER, "s.compensated_tokens", "The session so far: what the policy `interrupt_compensated` would bill."),
    Column("session_generated_tokens", Kind.INTEGER, "s.generated_tokens", "The session so far: tokens that engines generated."),
    Column("session_discarded_tokens", Kind.INTEGER, "s.discarded_tokens", "The session so far: of them in no log."),
    Column("session_regenerated_tokens", Kind.INTEGER, "s.regenerated_tokens", "The session so far: of them generated a second time."),
    Column("delivery_basis", Kind.CODE, "s.evidence", "The evidence of delivery: `ack`, `cursor`, `socket` or `none`."),
    Column("policy", Kind.CODE, "s.policy", "`delivered` or, by contract, `interrupt_compensated`."),
    Column("price_id", Kind.INTEGER, "s.plan_id", "The price plan; empty: there was none, and the prices are 0."),
    Column("input_price_per_million", Kind.DECIMAL, "s.input_per_million", "Of input tokens that were not cached. Prices are frozen in the line."),
    Column("cached_input_price_per_million", Kind.DECIMAL, "s.cached_input_per_million", "Of cached input tokens."),
    Column("output_price_per_million", Kind.DECIMAL, "s.output_per_million", "Of output tokens."),
    Column("coefficient", Kind.DECIMAL, "s.coefficient", "The amount was multiplied by it."),
    Column("currency", Kind.CODE, "e.currency", "ISO 4217."),
    Column("amount", Kind.DECIMAL, "e.amount", "Exact, up to 18 decimals, not rounded; credits are negative."),
    Column("charge_class", Kind.CODE, "CASE WHEN e.correction THEN 'Correction' END", "`Correction` where it corrects a period that was closed before; else empty."),
    Column("corrects_line_id", Kind.CODE, "e.charge_id::text", "The line that a credit takes from."),
    Column("reason", Kind.TEXT, "nullif(e.reason, '')", "Why a credit or adjustment was booked."),
    Column("session_began_at", Kind.TIME, "s.began_at", "Its prices are those of this moment."),
    Column("occurred_at", Kind.TIME, "coalesce(s.occurred_at, e.created_at)", "When the tokens were delivered, or the credit booked."),
    Column("recorded_at", Kind.TIME, "e.created_at", "When the line was booked."),
    Column("level", Kind.CODE, "nullif(w.level, '')", "The level of quality that the session had: `realtime`, `standard` or `economy`."),
    Column("variant", Kind.TEXT, "nullif(w.variant, '')", "Its side in a comparison, if it had one."),
)  # fmt: skip
