"""The billing settings: one frozen object, read from the environment once (as ``streaming.conf``)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from streaming.conf import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingConf:
    """Durations are seconds unless the name says otherwise."""

    billing_currency: str = setting("EUR", "Currency of usage that no price plan covers.")
    invoice_issuer: str = setting("Unbroken", "Who issues statements and FOCUS exports.")
    credit_approval_above: str = setting(
        "100", "Credits and adjustments above this amount, in any currency, need a second person."
    )
    export_at_once: int = setting(
        20_000,
        "Lines up to which the admin makes an export at once; beyond, in a process of its own.",
    )
    audit_key: str = setting(
        "",
        "Key that signs the audit log's published heads; by default derived from SECRET_KEY. Of"
        " several, with commas between them, the first signs and all are accepted.",
    )
    event_source: str = setting(
        "/unbroken",
        "The `source` of usage events; one for each deployment that shares a collector.",
    )
    quota_output_tokens: int = setting(
        1024, "Tokens of an answer that a quota reserves where the client sets no max_tokens."
    )

    @classmethod
    def from_env(cls, env: Any) -> BillingConf:
        """Read every field from ``env`` (an ``environs.Env``), falling back to its default."""
        readers = {int: env.int, float: env.float, bool: env.bool, str: env.str}
        return cls(
            **{
                f.name: readers[type(f.default)](f.name.upper(), default=f.default)
                for f in dataclasses.fields(cls)
            }
        )


def conf() -> BillingConf:
    """The settings in force."""
    return settings.BILLING
