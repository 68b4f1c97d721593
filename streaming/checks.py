"""System checks: settings that cannot work are refused at start."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core import checks

from streaming.conf import conf
from streaming.core.ladder import Ladder, problems
from streaming.core.levels import VARIANT
from streaming.core.nodes import parse_engine_nodes
from streaming.core.retention import longer_than_content

MOST_VARIANTS = 20
SHORTEST_METRICS_TOKEN = 16
"""Of several: the half of a token that had a comma in it is accepted like a whole one."""


@checks.register(checks.Tags.compatibility)
def check_engine_nodes(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """ENGINE_NODES must parse."""
    try:
        parse_engine_nodes(",".join(settings.ENGINE_NODES))
    except ValueError as exc:
        return [
            checks.Error(
                f"ENGINE_NODES: {exc}",
                hint="For example ENGINE_NODES=gpu-a=vllm+http://10.0.0.7:8000",
                id="streaming.E001",
            )
        ]
    return []


@checks.register(checks.Tags.compatibility)
def check_variants(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """VARIANTS must name variants, and few of them: each is a series of its own in metrics."""
    names = [name.strip() for name in conf().variants.split(",") if name.strip()]
    wrong = [name for name in names if not VARIANT.fullmatch(name)]
    if not wrong and len(names) <= MOST_VARIANTS:
        return []
    told = (
        f"{wrong[0]!r} is no name of a variant." if wrong else f"more than {MOST_VARIANTS} names."
    )
    return [
        checks.Error(
            f"VARIANTS: {told}",
            hint="Names of 1 to 32 letters, digits, dots, dashes or underscores: VARIANTS=blue,green",
            id="streaming.E011",
        )
    ]


@checks.register(checks.Tags.compatibility)
def check_limits(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Durations and ceilings must leave the gateway able to work."""
    settings_in_force = conf()
    must_be_positive = (
        "max_streams",
        "max_body_bytes",
        "health_interval",
        "dns_interval",
        "circuit_failures",
        "circuit_pause",
        "kv_high_water",
        "health_timeout",
        "engine_connect_timeout",
        "max_attempts",
        "max_continuations",
        "log_max_events",
        "log_max_bytes",
        "moderation_window",
        "moderation_seconds",
    )
    found: list[checks.CheckMessage] = [
        _limit_error(f"{name.upper()} must be greater than 0.")
        for name in must_be_positive
        if getattr(settings_in_force, name) <= 0
    ]
    found += [
        _limit_error(f"{name.upper()} must not be negative.")
        for name in ("queue_seconds", "queue_length")
        if getattr(settings_in_force, name) < 0
    ]
    if settings_in_force.queue_seconds >= settings_in_force.client_silence:
        found.append(
            checks.Warning(
                "QUEUE_SECONDS is not less than CLIENT_SILENCE.",
                hint="Who waits in the queue hears nothing meanwhile, and may give up.",
                id="streaming.W011",
            )
        )
    if settings_in_force.kv_high_water > 1:
        found.append(_limit_error("KV_HIGH_WATER must be at most 1: it is a share."))
    if not 16 <= settings_in_force.filter_hold_characters <= 1000:
        found.append(_limit_error("FILTER_HOLD_CHARACTERS must be from 16 to 1000."))
    if settings_in_force.moderation_fails not in ("open", "closed"):
        found.append(_limit_error("MODERATION_FAILS must be open or closed."))
    return found


def _limit_error(message: str) -> checks.Error:
    hint = "Unset it to use the default (docs/settings.md)."
    return checks.Error(message, hint=hint, id="streaming.E002")


@checks.register(checks.Tags.compatibility)
def check_retention(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Who asked is known for at least as long as what was asked."""
    if not longer_than_content(conf().content_days, conf().metadata_days):
        return [
            checks.Error(
                "METADATA_DAYS must not be less than CONTENT_DAYS.",
                hint="Content goes first. 0 is for ever (docs/retention.md).",
                id="streaming.E006",
            )
        ]
    return []


LADDER_IDS = {
    "limit": "streaming.E002",
    "ladder": "streaming.E003",
    "idle": "streaming.E004",
    "total": "streaming.E005",
}


@checks.register(checks.Tags.compatibility)
def check_ladder(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Each party must bear silence for longer than the one in front of it."""
    in_force = conf()
    names = [f.name for f in dataclasses.fields(Ladder)]
    ladder = Ladder(**{name: getattr(in_force, name) for name in names})
    return [
        checks.Error(problem.message, hint=problem.hint, id=LADDER_IDS[problem.kind])
        for problem in problems(ladder)
    ]


@checks.register(checks.Tags.security)
def check_metrics_token(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Without a token /metrics answers readers on the same machine only; one nobody can send is none."""
    if conf().metrics_token:
        return list(_odd_metrics_tokens())
    if not _public_hosts():
        return []
    return [
        checks.Warning(
            "There is no METRICS_TOKEN: /metrics answers only readers on the same machine.",
            hint="Set it to a long random value, and give it to Prometheus as its bearer token.",
            id="streaming.W010",
        )
    ]


def _odd_metrics_tokens() -> Iterator[checks.CheckMessage]:
    tokens = [token.strip() for token in conf().metrics_token.split(",")]
    hint = "One token, or several with commas between them; a comma within a token makes two of it."
    if not all(token.isascii() and token.isprintable() and token for token in tokens):
        yield checks.Error(
            "METRICS_TOKEN has a token that is empty, or that no header can carry.",
            hint=hint,
            id="streaming.E012",
        )
    elif len(tokens) > 1 and min(map(len, tokens)) < SHORTEST_METRICS_TOKEN:
        yield checks.Warning(
            f"Of the tokens in METRICS_TOKEN one has less than {SHORTEST_METRICS_TOKEN} characters.",
            hint=hint,
            id="streaming.W012",
        )


@checks.register(checks.Tags.security)
def check_demo_mode(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Demo mode lets anyone who can open the page chat and kill nodes."""
    public = _public_hosts()
    if conf().demo and public:
        return [
            checks.Warning(
                f"DEMO is on while ALLOWED_HOSTS admits {', '.join(public)}.",
                hint="Demo mode is for a machine of your own: anyone may chat and kill its nodes.",
                id="streaming.W001",
            )
        ]
    return []


def _public_hosts() -> list[str]:
    """What ALLOWED_HOSTS admits besides this machine's own names."""
    own = ("localhost", "127.0.0.1", "[::1]")
    return [host for host in settings.ALLOWED_HOSTS if host not in own]
