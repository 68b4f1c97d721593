"""What PostgreSQL writes for a million tokens: ``python -m bench.disk [--only paced|fast] [--streams N]``.

Tokens go the real way: engine, gateway, journal, and then the worker's settlement. Read are the
server's own figures: ``pg_stat_wal`` for what went into the WAL (and so to standbys and archives),
``pg_total_relation_size`` for what stays on disk. Each case begins with a checkpoint, so that it has
its share of full-page images, and runs with short and with long answers, because each session costs
something besides its tokens. All of it once with ``wal_compression`` off and once for
each kind that this PostgreSQL has.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.load import Job, Load
from bench.stacks import Bench, bench, machine, start_durable_services
from tests.stack import Stack

PACE = 20.0
SETTLED_WITHIN = 60.0

# The log by its partitions; all that a session has besides.
SIZES = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)) FILTER (WHERE c.relname LIKE 'checkpoints_%'), 0),
    coalesce(sum(pg_total_relation_size(c.oid)) FILTER (WHERE c.relname NOT LIKE 'checkpoints_%'), 0)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' AND c.relkind = 'r'
"""
WAL = "SELECT wal_bytes, wal_fpi FROM pg_stat_wal"
KINDS = "SELECT unnest(enumvals) FROM pg_settings WHERE name = 'wal_compression'"
TOKENS_A_ROW = "SELECT avg(last_seq - first_seq + 1) FROM streaming_tokencheckpoint"
SETTLE = """
from billing.services.settlement import settle_due
while settle_due()["more"]:
    pass
"""
UNSETTLED = "SELECT count(*) FROM streaming_outboxmessage WHERE handled_at IS NULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``streams`` answers of ``tokens`` tokens each, by an engine of that ``model``."""

    model: str
    streams: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Bytes, settlement included; ``log`` and ``rest`` are on disk."""

    tokens: int
    sessions: int
    whole: int
    tokens_a_row: float
    wal: int
    images: int
    log: int
    rest: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("paced", "fast"))
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", default="100,400", help="lengths of the answers")
    parser.add_argument("--compression", help="one kind only: off, pglz, lz4, zstd")
    options = parser.parse_args()
    postgres_pid = start_durable_services()
    facts = machine(Path(tempfile.gettempdir()))
    print(f"{facts['date']}, {facts['commit']}, {facts['cpu']}, load {facts['load_before'][0]}")
    for model in [options.only] if options.only else ["paced", "fast"]:
        for kind in [options.compression] if options.compression else kinds(postgres_pid):
            for tokens in map(int, options.tokens.split(",")):
                case = Case(model=model, streams=options.streams, tokens=tokens)
                print(said(model, kind, measured(postgres_pid, case, kind)), flush=True)


def kinds(postgres_pid: int) -> list[str]:
    """What ``wal_compression`` may be here."""
    with bench(postgres_pid, PACE) as made:
        known = [name for (name,) in made.stack.sql(KINDS)]
    return [name for name in ("off", "pglz", "lz4", "zstd") if name in known]


def measured(postgres_pid: int, case: Case, compression: str) -> Written:
    """A database of its own for each, so that sizes begin at the same place."""
    with bench(postgres_pid, PACE) as made:
        stack = made.stack
        stack.sql(f"ALTER SYSTEM SET wal_compression = '{compression}'")
        stack.sql("SELECT pg_reload_conf()")
        stack.sql("CHECKPOINT")
        log, rest = sizes(stack)
        before, images = wal(stack)
        seen = Load(job(made, case)).result()
        settle(stack)
        after, images_after = wal(stack)
        ((each,),) = stack.sql(TOKENS_A_ROW)
        log_after, rest_after = sizes(stack)
        return Written(
            tokens=case.streams * case.tokens,
            sessions=case.streams,
            whole=sum(stream.whole for stream in seen.streams),
            tokens_a_row=float(each),
            wal=after - before,
            images=images_after - images,
            log=log_after - log,
            rest=rest_after - rest,
        )


def job(made: Bench, case: Case) -> Job:
    return Job(
        url=made.stack.gateway().url, key=made.key, model=case.model, streams=case.streams,
        tokens=case.tokens, rate=min(100.0, case.streams / 2), label=f"disk {time.time_ns()}",
    )  # fmt: skip


def wal(stack: Stack) -> tuple[int, int]:
    """Bytes and full-page images until now. PostgreSQL's processes tell of theirs a second later."""
    time.sleep(1.5)
    ((size, images),) = stack.sql(WAL)
    return int(size), images


def sizes(stack: Stack) -> tuple[int, int]:
    ((log, rest),) = stack.sql(SIZES)
    return int(log), int(rest)


def settle(stack: Stack) -> None:
    """What the worker does. Raises ``TimeoutError``."""
    give_up = time.monotonic() + SETTLED_WITHIN
    while stack.sql(UNSETTLED) != [(0,)]:
        if time.monotonic() > give_up:
            raise TimeoutError("something is never settled")
        stack.manage("shell", "--no-imports", "-c", SETTLE)


def said(model: str, compression: str, written: Written) -> str:
    """A few lines of it."""

    def all_in_all(size: int) -> str:
        a_session = size / written.sessions / 1000
        return f"{size / written.tokens:.0f} MB a million tokens ({a_session:.1f} KB an answer)"

    return "\n".join([
        f"{model}, {written.sessions} answers of {written.tokens // written.sessions} tokens, "
        f"wal_compression {compression}: {written.whole} whole, {written.tokens_a_row:.1f} tokens a row",
        f"  WAL: {all_in_all(written.wal)}, {written.images} full-page images in it",
        f"  disk, log: {all_in_all(written.log)}",
        f"  disk, all else: {all_in_all(written.rest)}",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
