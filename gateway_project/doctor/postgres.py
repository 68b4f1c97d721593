"""PostgreSQL as a server: whether it answers, how fast it commits, and whether it keeps its word."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg
from django.conf import settings

from gateway_project.checks import behind_pooler
from gateway_project.doctor.clocks import difference
from gateway_project.doctor.finding import Finding, failure, left_out, note, ok, warning
from streaming.runtime.gateway import POOL_SIZE, UPKEEP_SIZE
from streaming.runtime.journal import FLUSH_SECONDS

OLDEST = 140000
CONNECT_SECONDS = 5
COMMITS = 21
CLOCK_WARNING, CLOCK_FAILURE = 0.5, 5.0
"""Seconds between two clocks: of tokens that expire, and of heartbeats that count as dead."""
COMMIT_NOTE, COMMIT_WARNING = 0.005, 0.020
OLD_TRANSACTION = 600.0
OWN_CONNECTIONS = POOL_SIZE + UPKEEP_SIZE + 1
"""Of one gateway process besides Django's pool: its readers', its upkeep's, its journal's."""
WRAPAROUND = 1_000_000_000
DOC = "docs/operations.md"

_SETTINGS = (
    "synchronous_commit", "fsync", "full_page_writes", "synchronous_standby_names", "autovacuum",
    "max_connections", "superuser_reserved_connections", "statement_timeout", "lock_timeout",
    "idle_in_transaction_session_timeout", "transaction_timeout",
)  # fmt: skip
# Of other roles' connections PostgreSQL tells who has them and where, but not what they are and do,
# unless we are a member of pg_read_all_stats. They count all the same.
_ACTIVITY = """
SELECT count(*), count(*) FILTER (WHERE backend_type IS NULL),
    coalesce(max(extract(epoch FROM now() - xact_start)), 0)::float8
FROM pg_stat_activity WHERE pid <> pg_backend_pid()
AND coalesce(backend_type = 'client backend', datid IS NOT NULL AND usesysid IS NOT NULL)
"""
_STANDBYS = """
SELECT application_name, coalesce(sync_state, '?'), extract(epoch FROM replay_lag)::float8
FROM pg_stat_replication
"""
# A message in the write-ahead log that nobody reads: it makes a commit a real one, and leaves nothing.
_COMMIT = "SELECT pg_logical_emit_message(true, 'unbroken doctor', '')"


@dataclass(frozen=True, slots=True)
class Standby:
    """``lag``: seconds; None: not told, or nothing to replay."""

    name: str
    sync_state: str
    lag: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Times in seconds. ``settings`` are those of our role, as a gateway's connection has them.

    ``veiled_connections``: those of other roles, of which our role is not told what they do.
    """

    version: int
    round_trip: float
    commit: float | None
    settings: Mapping[str, str]
    clock_offset: float
    connections: int
    veiled_connections: int
    oldest_transaction: float
    in_recovery: bool
    transaction_age: int
    standbys: tuple[Standby, ...]


# --- reading ----------------------------------------------------------------------------------------


def is_reachable() -> bool:
    """Whether the database lets us in."""
    if not settings.DATABASE_URL:
        return False
    try:
        psycopg.connect(settings.DATABASE_URL, connect_timeout=CONNECT_SECONDS).close()
    except psycopg.Error:
        return False
    return True


def look() -> Iterator[Finding]:
    """The server behind DATABASE_URL, and whether DATABASE_DIRECT_URL leads to the same one."""
    if not settings.DATABASE_URL:
        yield failure(
            "reachable", "there is no DATABASE_URL", "Set it, or start `manage.py serve`."
        )
        return
    try:
        connection = psycopg.connect(
            settings.DATABASE_URL, autocommit=True, connect_timeout=CONNECT_SECONDS,
            prepare_threshold=None, application_name="unbroken doctor",
        )  # fmt: skip
    except psycopg.OperationalError as exc:
        yield failure(
            "reachable",
            f"no connection: {exc}",
            "Without PostgreSQL nothing is answered: see that it runs, that its address is right, and "
            "that pg_hba.conf lets this machine in.",
        )
        return
    with connection:
        server = read_server(connection)
    yield from judge_server(server, is_remote=_is_remote(settings.DATABASE_URL))
    yield judge_connections(server, settings.DATABASES["default"], _gateways())
    yield from _look_at_pooler()


def read_server(connection: psycopg.Connection[Any]) -> Server:
    """Raises ``psycopg.Error``."""
    trips = [_timed(connection, "SELECT 1") for _ in range(COMMITS)]
    (in_recovery,) = _row(connection, "SELECT pg_is_in_recovery()")
    commits = [] if in_recovery else [_timed(connection, _COMMIT) for _ in range(COMMITS)]
    before = time.time()
    (theirs,) = _row(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")
    after = time.time()
    found = connection.execute(
        "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s)",
        (list(_SETTINGS),),
    ).fetchall()
    connections, veiled, oldest = _row(connection, _ACTIVITY)
    (age,) = _row(
        connection, "SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()"
    )
    return Server(
        version=connection.info.server_version,
        round_trip=statistics.median(trips),
        commit=statistics.median(commits) if commits else None,
        settings=dict(found),
        clock_offset=difference(theirs, before, after),
        connections=connections,
        veiled_connections=veiled,
        oldest_transaction=oldest,
        in_recovery=in_recovery,
        transaction_age=age,
        standbys=tuple(Standby(*row) for row in connection.execute(_STANDBYS).fetchall()),
    )


def _look_at_pooler() -> Iterator[Finding]:
    direct = settings.DATABASE_DIRECT_URL
    try:
        pooled = behind_pooler(direct)
        is_same = direct == settings.DATABASE_URL or _lead_to_one(direct, settings.DATABASE_URL)
    except psycopg.OperationalError as exc:
        yield failure(
            "direct connection",
            f"DATABASE_DIRECT_URL cannot be connected to: {exc}",
            "It is the connection to PostgreSQL itself, past any pooler; by default DATABASE_URL.",
        )
        return
    yield judge_direct(pooled=pooled, is_same=is_same)


def _lead_to_one(direct: str, other: str) -> bool:
    """Whether a lock that is held by way of one URL is seen by way of the other."""
    key = time.time_ns() >> 16
    with (
        psycopg.connect(direct, autocommit=True, connect_timeout=CONNECT_SECONDS) as one,
        psycopg.connect(
            other, autocommit=True, connect_timeout=CONNECT_SECONDS, prepare_threshold=None
        ) as two,
    ):
        one.execute("SELECT pg_advisory_lock(%s)", (key,))
        (free,) = _row(two, "SELECT pg_try_advisory_xact_lock(%s)", key)
    return not free


def _gateways() -> int:
    """Gateway processes that live, or at least one."""
    from gateway_project.doctor.gateways import live_count

    return max(live_count(), 1)


def _timed(connection: psycopg.Connection[Any], statement: str) -> float:
    began = time.perf_counter()
    connection.execute(statement)
    return time.perf_counter() - began


def _row(connection: psycopg.Connection[Any], statement: str, *arguments: Any) -> tuple[Any, ...]:
    row = connection.execute(statement, arguments or None).fetchone()
    assert row is not None
    return row


def _is_remote(url: str) -> bool:
    host = urlsplit(url).hostname if "://" in url else None
    return host not in (None, "localhost", "127.0.0.1", "::1")


# --- judging ----------------------------------------------------------------------------------------


def judge_server(server: Server, *, is_remote: bool) -> Iterator[Finding]:
    yield _judge_version(server)
    if server.in_recovery:
        yield failure(
            "writable",
            "it is a standby, or still recovering: nothing can be written",
            "Point DATABASE_URL at the primary (target_session_attrs=read-write finds it by itself).",
            DOC,
        )
    yield from _judge_speed(server, is_remote)
    yield from _judge_durability(server.settings)
    yield from _judge_timeouts(server.settings)
    yield _judge_standbys(server)
    yield judge_clock("clock", "PostgreSQL's", server.clock_offset)
    if server.oldest_transaction > OLD_TRANSACTION:
        yield warning(
            "long transactions",
            f"one has been open for {server.oldest_transaction / 60:.0f} min: nothing that was deleted since is freed",
            "Find it in pg_stat_activity (by xact_start) and end it.",
            DOC,
        )
    elif server.veiled_connections:
        yield note(
            "long transactions",
            f"our role is not told of those of {server.veiled_connections} connections of other roles",
            "GRANT pg_read_all_stats TO our role, or run the doctor as a role that has it.",
            DOC,
        )
    yield (
        ok("autovacuum", f"on; the oldest transaction id is {server.transaction_age:,} old")
        if server.settings.get("autovacuum") == "on" and server.transaction_age < WRAPAROUND
        else failure(
            "autovacuum",
            f"autovacuum is {server.settings.get('autovacuum')}, the oldest transaction id "
            f"{server.transaction_age:,} old",
            "Turn autovacuum on, and VACUUM what has not been: at 2 billion the server stops writing.",
            DOC,
        )
    )


def _judge_version(server: Server) -> Finding:
    major = server.version // 10_000
    if server.version < OLDEST:
        return failure(
            "version", f"PostgreSQL {major}", "14 is the oldest that Django supports here."
        )
    return ok("version", f"PostgreSQL {major}")


def _judge_speed(server: Server, is_remote: bool) -> Iterator[Finding]:
    where = "over the network" if is_remote else "on this machine"
    trip = f"{server.round_trip * 1000:.2f} ms there and back {where}"
    if server.round_trip > COMMIT_NOTE:
        yield warning("round trip", trip, "Put gateway and database into one zone.", DOC)
    else:
        yield ok("round trip", trip)
    if server.commit is None:
        return
    seen = f"{server.commit * 1000:.2f} ms for a small commit (median of {COMMITS})"
    if server.commit > COMMIT_WARNING:
        yield warning(
            "commit time",
            f"{seen}: every token waits for one",
            "Faster storage for the write-ahead log (local NVMe), or a synchronous standby that is nearer.",
            DOC,
        )
    elif server.commit > COMMIT_NOTE:
        yield note("commit time", seen, "Every token waits for one; faster storage is felt.", DOC)
    else:
        yield ok("commit time", seen)


def _judge_durability(told: Mapping[str, str]) -> Iterator[Finding]:
    """A token is shown once it is committed: that must mean something."""
    commit = told.get("synchronous_commit", "?")
    standbys = told.get("synchronous_standby_names", "")
    if commit == "off":
        yield failure(
            "synchronous_commit",
            "is off for our role: tokens are shown that a crash of the server forgets",
            "ALTER ROLE … RESET synchronous_commit (or ALTER DATABASE, or postgresql.conf: on).",
            DOC,
        )
    elif standbys and commit == "local":
        yield warning(
            "synchronous_commit",
            "is local although there are synchronous standbys: a failover forgets what was shown",
            "Set it to on for our role.",
            DOC,
        )
    else:
        yield ok("synchronous_commit", commit)
    for name, lost in (
        ("fsync", "a power cut may destroy the database"),
        ("full_page_writes", "a power cut may leave torn pages"),
    ):
        value = told.get(name, "?")
        yield (
            ok(name, value)
            if value == "on"
            else failure(name, f"is {value}: {lost}", f"{name} = on in postgresql.conf.", DOC)
        )


def _judge_timeouts(told: Mapping[str, str]) -> Iterator[Finding]:
    for name in ("statement_timeout", "lock_timeout", "transaction_timeout"):
        seconds = parsed_duration(told.get(name, "0"))
        if seconds and seconds < FLUSH_SECONDS:
            yield warning(
                name,
                f"is {told[name]} for our role: a flush of the journal may take {FLUSH_SECONDS:g} s",
                f"ALTER ROLE … SET {name} = 0, or a minute.",
                DOC,
            )
    idle = told.get("idle_in_transaction_session_timeout", "0")
    yield (
        ok("idle transactions", f"are ended after {idle}")
        if parsed_duration(idle)
        else note(
            "idle transactions",
            "are never ended: one that hangs holds back vacuum and the partitions of the log",
            "ALTER ROLE … SET idle_in_transaction_session_timeout = '10min'.",
            DOC,
        )
    )


def _judge_standbys(server: Server) -> Finding:
    names = server.settings.get("synchronous_standby_names", "")
    told = ", ".join(
        f"{one.name} ({one.sync_state}" + (f", {one.lag:.1f} s behind)" if one.lag else ")")
        for one in server.standbys
    )
    if not server.standbys:
        if names:
            return failure(
                "standbys",
                f"none is connected, and commits wait for {names}",
                "Bring the standby back, or take it out of synchronous_standby_names.",
                DOC,
            )
        return note(
            "standbys",
            "none: the log is as safe as this one disk",
            "See what a failover loses.",
            DOC,
        )
    if not names:
        return note(
            "standbys", f"{told}; none is synchronous", "A failover loses what it had not yet.", DOC
        )
    return ok("standbys", told)


def judge_clock(check: str, whose: str, offset: float) -> Finding:
    """``offset``: theirs less ours, in seconds."""
    way = "ahead of" if offset > 0 else "behind"
    seen = (
        f"{whose} clock is {abs(offset):.1f} s {way} ours"
        if offset
        else f"{whose} clock is as ours"
    )
    if abs(offset) > CLOCK_FAILURE:
        return failure(check, seen, "Keep both clocks by NTP (chrony); tokens expire by them.")
    if abs(offset) > CLOCK_WARNING:
        return warning(check, seen, "Keep both clocks by NTP (chrony).")
    return ok(check, seen)


def judge_connections(server: Server, database: Mapping[str, Any], gateways: int) -> Finding:
    """``max_connections`` against what that many gateway processes may open, worker and beat beside."""
    django = database.get("OPTIONS", {}).get("pool", {}).get("max_size", 0)
    reserved = int(server.settings.get("superuser_reserved_connections", 3))
    there = int(server.settings.get("max_connections", 100)) - reserved
    wanted = gateways * (OWN_CONNECTIONS + django) + 2 * max(django, 1)
    seen = (
        f"{server.connections} of {there} in use; {gateways} gateway processes, worker and beat may open "
        f"{wanted}"
    )
    advice = (
        "Raise max_connections, lower DATABASE_POOL_SIZE, or put a pooler in front of DATABASE_URL."
    )
    if server.connections > there * 0.9:
        return failure("connections", seen, advice, DOC)
    if wanted > there:
        return warning("connections", seen, advice, DOC)
    return ok("connections", seen)


def judge_direct(*, pooled: bool, is_same: bool) -> Finding:
    if pooled:
        return failure(
            "direct connection",
            "DATABASE_DIRECT_URL leads to a connection pooler in transaction mode: locks get lost there",
            "Point it at PostgreSQL itself. DATABASE_URL may keep using the pooler.",
        )
    if not is_same:
        return failure(
            "direct connection",
            "DATABASE_DIRECT_URL and DATABASE_URL lead to different databases",
            "Both must name the same database of the same server.",
        )
    return ok("direct connection", "leads to PostgreSQL itself")


def parsed_duration(text: str) -> float:
    """Seconds of PostgreSQL's own spelling (``5min``, ``500ms``, ``0``); 0: no limit."""
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    return float(number or 0) * units.get(text[len(number) :], 1e-3)


def unreachable(check: str) -> Finding:
    return left_out(check, "the database cannot be reached")
