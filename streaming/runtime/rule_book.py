"""The content rules in force, as this process knows them.

Every ``LOOK_SECONDS`` one query tells whether any rule has changed; only then all are read. No answer
ever waits for a query: a session takes the rules of its tenant when it first asks an engine, and keeps
them, so that what it said before a seam and after it was filtered alike. Whoever takes it over goes on
with the rules of that moment.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streaming.conf import conf
from streaming.core.content_rules import Action, Rule, RuleRefused, RuleSet

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0

_VERSION = """
SELECT count(*), coalesce(sum(hashtextextended(id || ':' || xmin::text, 0)::numeric), 0)
FROM streaming_contentrule
"""
_RULES = """
SELECT id, tenant_id, name, kind, pattern, case_sensitive, action, replacement
FROM streaming_contentrule WHERE is_active ORDER BY tenant_id NULLS FIRST, id
"""


class RuleBook:
    """``of`` gives a tenant's rules, ready to be applied; they are made ready once."""

    def __init__(self, pool: AsyncConnectionPool) -> None:
        self._pool = pool
        self._version: tuple[Any, ...] | None = None
        self._for_all: tuple[Rule, ...] = ()
        self._of_tenant: dict[int, tuple[Rule, ...]] = {}
        self._ready: dict[tuple[Rule, ...], RuleSet | None] = {}
        self._usable: dict[Rule, bool] = {}
        self._making = asyncio.Lock()

    def __repr__(self) -> str:
        own = sum(len(rules) for rules in self._of_tenant.values())
        return f"<RuleBook {len(self._for_all)} rules for all, {own} of tenants>"

    async def look(self) -> None:
        """Read the rules if any has changed. Raises ``psycopg.Error`` or ``PoolTimeout``."""
        async with self._pool.connection() as connection:
            version = await (await connection.execute(_VERSION)).fetchone()
            if version == self._version:
                return
            rows = await (await connection.execute(_RULES)).fetchall()
        found: dict[int | None, list[Rule]] = {}
        usable: dict[Rule, bool] = {}
        for key, tenant_id, name, kind, pattern, case_sensitive, action, replacement in rows:
            rule = Rule(
                name=name,
                pattern=pattern,
                action=Action(action),
                is_regex=kind == "regex",
                case_sensitive=case_sensitive,
                replacement=replacement,
            )
            if rule not in self._usable:
                self._usable[rule] = await asyncio.to_thread(_is_usable, key, rule)
            usable[rule] = self._usable[rule]
            if usable[rule]:
                found.setdefault(tenant_id, []).append(rule)
        self._for_all = tuple(found.pop(None, []))
        self._of_tenant = {key: tuple(rules) for key, rules in found.items() if key is not None}
        in_force = {self._of(tenant_id) for tenant_id in (None, *self._of_tenant)}
        self._ready = {key: ready for key, ready in self._ready.items() if key in in_force}
        self._version, self._usable = version, usable

    async def look_forever(self) -> None:
        """``look`` again and again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except (psycopg.Error, PoolTimeout) as exc:
                logger.info("content rules cannot be looked for, the known ones stay: %s", exc)

    def _of(self, tenant_id: int | None) -> tuple[Rule, ...]:
        own = () if tenant_id is None else self._of_tenant.get(tenant_id, ())
        return self._for_all + own

    async def of(self, tenant_id: int) -> RuleSet | None:
        """The rules for answers of a tenant; None: there are none."""
        rules = self._of(tenant_id)
        if not rules:
            return None
        if rules not in self._ready:
            async with self._making:  # a crowd of sessions waits for one making
                if rules not in self._ready:
                    self._ready[rules] = await asyncio.to_thread(
                        RuleSet, rules, conf().filter_hold_characters
                    )
        return self._ready[rules]


def _is_usable(key: int, rule: Rule) -> bool:
    """Rules are checked when they are saved; this one may have been under other settings."""
    try:
        RuleSet([rule], conf().filter_hold_characters)
    except RuleRefused as exc:
        logger.error("content rule %d is not applied: %s", key, exc)
        return False
    return True
