"""The settings: Django's checks for deployments and ours, and what none of them can see."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from django.conf import settings
from django.core import checks
from django.http.request import validate_host

from billing.conf import BillingConf
from gateway_project.doctor.finding import Finding, failure, note, ok, warning
from streaming.conf import StreamingConf, conf

DOC = "docs/settings.md"
SIMILAR = 0.85
"""How much alike a variable must be to one of ours to look misspelled."""
KEY_VARIABLE = "UNBROKEN_API_KEY"
LOCAL = ("localhost", "127.0.0.1", "[::1]")

BEHIND_TLS = {"security.W004", "security.W012", "security.W016"}
"""Django's warnings that HTTPS_ONLY is about."""
NOT_OURS = {
    "security.W008": "The proxy in front redirects; `--url` looks whether it does.",
    "security.W021": "Preloading is for you to decide: it binds the whole domain.",
}
"""Django's warnings that say nothing against a deployment."""


# --- reading ----------------------------------------------------------------------------------------


def look(host: str | None = None) -> Iterator[Finding]:
    """``host``: the public name, where it is known."""
    messages = checks.run_checks(include_deployment_checks=True, databases=[])
    found = [judge_message(message) for message in messages if not message.is_silenced()]
    yield from found or [ok("system checks", "Django's and ours find nothing")]
    yield from judge_debug(settings.DEBUG, conf().demo)
    yield judge_hosts(settings.ALLOWED_HOSTS, host)
    yield judge_grace(conf().shutdown_grace, conf().gateway_silence)
    yield from judge_variables(os.environ, known_variables())


def known_variables() -> set[str]:
    """Every variable that is read: those of the settings module, and the apps' own."""
    source = (Path(settings.BASE_DIR) / "gateway_project/settings.py").read_text()
    named = re.findall(r"env\.\w+\(\s*\"([A-Z_]+)\"", source)
    fields = [
        f.name.upper() for kind in (StreamingConf, BillingConf) for f in dataclasses.fields(kind)
    ]
    return {*named, *fields, KEY_VARIABLE, "DJANGO_SETTINGS_MODULE"}


# --- judging ----------------------------------------------------------------------------------------


def judge_message(message: checks.CheckMessage) -> Finding:
    """A message of a system check as a finding."""
    check, seen = message.id or "system check", message.msg
    if check in NOT_OURS:
        return note(check, seen.partition(". ")[0], NOT_OURS[check])
    if check in BEHIND_TLS:
        hint = "Behind TLS: HTTPS_ONLY=true, for secure cookies and HSTS."
        return warning(check, f"{seen.partition('. ')[0].rstrip('.')}.", hint, DOC)
    hint = message.hint or "See the documentation of Django's system checks."
    if message.level >= checks.ERROR:
        return failure(check, seen, hint, DOC)
    if message.level >= checks.WARNING:
        return warning(check, seen, hint, DOC)
    return note(check, seen, hint, DOC)


def judge_debug(debug: bool, demo: bool) -> Iterator[Finding]:
    if debug:
        yield failure(
            "DEBUG", "is on: errors show settings to whoever causes them", "Unset DEBUG.", DOC
        )
    if demo:
        yield failure("DEMO", "is on: anyone may chat and kill nodes", "Unset DEMO.", DOC)


def judge_hosts(allowed: Collection[str], host: str | None) -> Finding:
    """Admin and pages answer 400 to other names."""
    if "*" in allowed:
        return warning("ALLOWED_HOSTS", "admits every name", "Name the public host alone.", DOC)
    if host is not None and not validate_host(host, allowed):
        return failure(
            "ALLOWED_HOSTS",
            f"does not admit {host}: admin and pages answer 400 there",
            f"Add {host} to it.",
            DOC,
        )
    if host is None and all(name in LOCAL for name in allowed):
        return note(
            "ALLOWED_HOSTS",
            "admits this machine's own names only",
            "Add the public name if others are to open admin and pages.",
            DOC,
        )
    return ok("ALLOWED_HOSTS", ", ".join(allowed))


def judge_grace(shutdown_grace: float, gateway_silence: float) -> Finding:
    """What stops a process must wait for longer, and streams need time to move."""
    seen = f"a stopping process lets its streams go on for {shutdown_grace:g} s"
    if shutdown_grace < gateway_silence:
        return warning(
            "SHUTDOWN_GRACE",
            f"{seen}, less than a failover may take (GATEWAY_SILENCE {gateway_silence:g} s)",
            "Raise it; plain OpenAI clients cannot come back.",
            DOC,
        )
    return note(
        "SHUTDOWN_GRACE",
        seen,
        "What stops it has to wait for longer: nginx's worker_shutdown_timeout, systemd's TimeoutStopSec, "
        "terminationGracePeriodSeconds.",
        DOC,
    )


def judge_variables(environment: Mapping[str, str], known: Collection[str]) -> Iterator[Finding]:
    """Variables that look like ours and are none: nobody reads them, and nobody says so."""
    suspects = sorted(name for name in environment if name not in known)
    mistaken = [
        (name, alike[0])
        for name in suspects
        if (alike := difflib.get_close_matches(name, known, n=1, cutoff=SIMILAR))
    ]
    for name, meant in mistaken:
        yield warning(
            "environment",
            f"{name} is read by nobody; it looks like {meant}",
            f"Rename it to {meant}, or take it out.",
            DOC,
        )
    if not mistaken:
        yield ok(
            "environment", f"{sum(name in known for name in environment)} of our variables are set"
        )
