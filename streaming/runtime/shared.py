"""What all runners of a process share."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg_pool import AsyncConnectionPool

from streaming.fleet.attribution import Attributor
from streaming.fleet.continuations import Continuations
from streaming.fleet.nodes import Fleet
from streaming.fleet.suspicion import Suspicion
from streaming.fleet.watch import FleetWatch
from streaming.runtime.journal import Journal
from streaming.runtime.moves import Moves
from streaming.runtime.reclaim import Reclaimer
from streaming.runtime.rule_book import RuleBook
from streaming.runtime.turns import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """See the classes."""

    fleet: Fleet
    attributor: Attributor
    reclaimer: Reclaimer
    watch: FleetWatch
    suspicion: Suspicion
    continuations: Continuations
    turns: Turns
    moves: Moves
    journal: Journal
    pool: AsyncConnectionPool
    rules: RuleBook
