"""The streaming settings: one frozen object, read from the environment once.

``gateway_project.settings`` builds it (``STREAMING = StreamingConf.from_env(env)``); everything
else asks ``conf()``. The table in ``docs/settings.md`` is generated from these fields.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.dispatch import receiver


def setting(default: Any, help: str) -> Any:
    """A field whose environment variable is its name in capitals."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingConf:
    """Durations are seconds unless the name says otherwise."""

    max_streams: int = setting(
        2000, "Live sessions one gateway process accepts before it answers 503."
    )
    queue_seconds: float = setting(
        10.0,
        "How long a request waits for a stream to end where a tenant, key or end user has as many as it may; then it is answered 429 (0: at once).",
    )
    queue_length: int = setting(
        200, "Requests of one tenant that wait so at once, in all gateway processes together."
    )
    max_body_bytes: int = setting(
        4 * 1024 * 1024, "Largest request body; above it the answer is 413."
    )
    keepalive_seconds: float = setting(
        8.0, "Silence towards a reader after which a keep-alive comment is sent."
    )
    keepalive_weak_seconds: float = setting(
        3.0, "The same for a reader whose network is slow or loses packets."
    )
    recovering_ping_seconds: float = setting(
        1.0, "Pace of the pings a reader gets while its answer is being recovered."
    )
    response_start_seconds: float = setting(
        2.0, "The 200 of a stream is sent at its first durable token or after this long."
    )
    first_token_timeout: float = setting(
        60.0, "Silence tolerated from an engine before its first token."
    )
    client_silence: float = setting(
        15.0,
        "Silence after which a client should give its connection up; it is told, and ours does.",
    )
    gateway_silence: float = setting(
        22.0,
        "Silence of an engine between two tokens after which its attempt has failed, whatever speaks for it.",
    )
    engine_silence: float = setting(
        30.0, "Silence on a connection to an engine after which the connection is cut."
    )
    proxy_idle_seconds: float = setting(
        0.0, "How long the proxy in front lets a connection be silent (0: not known); checked only."
    )
    proxy_total_seconds: float = setting(
        0.0, "How long the proxy in front lets a response last (0: no limit); checked only."
    )
    max_answer_seconds: float = setting(
        3600.0, "How long one answer may be generated before it ends in timeout."
    )
    engine_connect_timeout: float = setting(2.0, "Time a node has to accept a connection.")
    max_failovers: int = setting(
        2,
        "Failed attempts in a row without a new durable token before the answer breaks off with failover_exhausted.",
    )
    max_attempts: int = setting(
        8,
        "Attempts in one go, whatever their progress, before the answer breaks off with failover_exhausted; twice as many may fail in all.",
    )
    max_continuations: int = setting(
        32,
        "Continuations whose prefix one node computes at once, over all gateway processes; others wait.",
    )
    node_wait_seconds: float = setting(
        30.0, "How long a session waits for a healthy node before no_healthy_node."
    )
    defragment_threshold: float = setting(
        0.15,
        "Share of a node's KV-cache that may be occupied by nothing before it is cleaned.",
    )
    defragment_drain_seconds: float = setting(
        120.0, "How long a node may take to be drained for that; then it is resumed as it is."
    )
    content_days: int = setting(
        30,
        "Days that requests and answers of ended sessions are kept (0: for ever); a tenant may have its own.",
    )
    metadata_days: int = setting(
        400,
        "Days that end users, client ids, events' and attempts' words are known (0: for ever; never before the month is closed); a tenant may have its own.",
    )
    health_interval: float = setting(1.0, "Pace of the node health probes.")
    health_timeout: float = setting(3.0, "Time a node has to answer a health probe.")
    dns_interval: float = setting(
        10.0, "Pace at which the addresses of nodes with dns=all are looked up."
    )
    circuit_failures: int = setting(
        5,
        "Failed attempts within 10 s, and at least half of all, after which a node gets no more for a while.",
    )
    circuit_pause: float = setting(
        1.0,
        "How long that is before one attempt may try again; twice as long each time it fails, up to 30 s.",
    )
    kv_high_water: float = setting(
        0.92,
        "Share of a node's KV-cache in use above which it takes no new sessions, only continuations.",
    )
    kubernetes_api: str = setting(
        "https://kubernetes.default.svc",
        "Where the pods of nodes with the option pod are asked after.",
    )
    kubernetes_account: str = setting(
        "/var/run/secrets/kubernetes.io/serviceaccount",
        "Directory with the token and ca.crt for it; it must be allowed to get pods.",
    )
    heartbeat_seconds: float = setting(1.0, "Pace of the gateway process's own heartbeat row.")
    journal_down_seconds: float = setting(
        60.0,
        "How long the token log may be unwritable before readers are told journal_unavailable.",
    )
    grace_seconds: float = setting(
        3.0,
        "How long a session goes on without a reader before its key's on_disconnect policy is applied.",
    )
    resume_window: float = setting(
        900.0, "How long a suspended session can be continued; then it ends as abandoned."
    )
    filter_hold_characters: int = setting(
        256, "The most text that content rules hold back, and the longest match they can have."
    )
    moderation_window: int = setting(
        200, "Characters that a moderator is asked about at a time, where one is connected."
    )
    moderation_seconds: float = setting(0.5, "How long an answer waits for a moderator's verdict.")
    moderation_fails: str = setting(
        "open",
        "Without a verdict in time: open (the answer goes on) or closed (it ends there).",
    )
    max_lead: int = setting(
        512,
        "A reader that takes nothing for its grace period, while the log leads it by more tokens than this, counts as absent.",
    )
    max_connection_age: float = setting(
        0.0,
        "Resumable readers are moved to a new connection after this long, before a middlebox cuts them (0: never).",
    )
    vanished_seconds: float = setting(
        20.0,
        "A client whose system acknowledges nothing for this long, although we keep sending, has vanished: its connection is cut.",
    )
    log_max_events: int = setting(
        4096, "Recent events of a session kept in memory; a reader further behind reads PostgreSQL."
    )
    log_max_bytes: int = setting(256 * 1024, "Recent bytes of a session kept in memory.")
    auth_cache_seconds: float = setting(
        2.0, "How long an API key is trusted before it is looked up again."
    )
    shutdown_grace: float = setting(120.0, "How long a stopping process lets its streams finish.")
    variants: str = setting(
        "",
        "Variants that metrics tell apart, comma-separated; any other name counts as other.",
    )
    metrics_token: str = setting(
        "",
        "Bearer token for /metrics; without one only readers on the same machine are answered. Of several, with commas between them, all are accepted; so no token can have a comma in it.",
    )
    webhook_private_addresses: bool = setting(
        False,
        "Whether webhooks and collectors may be at private addresses (not link-local ones), and without TLS.",
    )
    allow_rehearsal: bool = setting(
        False, "Whether test keys may rehearse faults with X-Unbroken-Rehearse."
    )
    demo: bool = setting(
        False, "Demo mode: the chat page may kill the demo nodes. Never in production."
    )

    @classmethod
    def from_env(cls, env: Any) -> StreamingConf:
        """Read every field from ``env`` (an ``environs.Env``), falling back to its default.

        Raises ``environs.EnvValidationError`` naming the variable when a value does not parse.
        """
        readers = {int: env.int, float: env.float, bool: env.bool, str: env.str}
        values = {
            f.name: readers[type(f.default)](f.name.upper(), default=f.default)
            for f in dataclasses.fields(cls)
        }
        return cls(**values)

    @property
    def metrics_tokens(self) -> list[str]:
        """The bearer tokens that METRICS_TOKEN names; an empty one is none."""
        return [token for token in map(str.strip, self.metrics_token.split(",")) if token]


_in_force: list[StreamingConf] = []
"""What ``conf`` has found: asking Django each time is felt where streams ask hundreds of times."""


def conf() -> StreamingConf:
    """The settings in force."""
    if not _in_force:
        _in_force.append(settings.STREAMING)
    return _in_force[0]


@receiver(setting_changed)
def _changed(setting: str, **_: Any) -> None:
    if setting == "STREAMING":
        _in_force.clear()
