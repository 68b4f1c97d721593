"""Making the checks, each by itself: a slow or broken one never keeps the others from being made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from django.db import connections

from gateway_project.doctor.finding import Finding, Level, failure
from gateway_project.doctor.secrets import Secrets

DOC = "docs/doctor.md"


@dataclass(frozen=True, slots=True)
class Check:
    """``look`` gives findings as it makes them. ``seconds``: its limit, after which it is left."""

    subject: str
    name: str
    look: Callable[[], Iterable[Finding]]
    seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class Found:
    """A finding, and what it is about."""

    subject: str
    finding: Finding


def examine(checks: Iterable[Check], secrets: Secrets) -> Iterator[Found]:
    """Make the checks one after the other. Never raises for what goes wrong in one of them."""
    for check in checks:
        for finding in _made(check):
            yield Found(check.subject, _presentable(check, finding, secrets))


def worst(found: Iterable[Found]) -> Level:
    """The worst level among them; ok where there is none."""
    levels = list(Level)
    return max((one.finding.level for one in found), key=levels.index, default=Level.OK)


def _made(check: Check) -> list[Finding]:
    found: list[Finding] = []
    # A daemon: what hangs in a system call can't be ended, and must not hold up our own end.
    thread = threading.Thread(
        target=_collect, args=(check, found), name=f"check {check.name}", daemon=True
    )
    thread.start()
    thread.join(check.seconds)
    if not thread.is_alive():
        return found
    late = failure(
        check.name,
        f"not done within {check.seconds:g} s; what it had found by then is above",
        "Something that it asks does not answer: look at the subject's other findings first.",
        f"{DOC}#a-check-that-fails",
    )
    return [*found, late]


def _collect(check: Check, found: list[Finding]) -> None:
    try:
        for finding in check.look():
            found.append(finding)
    except Exception as exc:  # noqa: BLE001  whatever a broken deployment makes a check raise
        found.append(
            failure(
                check.name,
                f"the check itself failed: {type(exc).__name__}: {exc}",
                "Look at the subject's other findings first; if they are good, report it.",
                f"{DOC}#a-check-that-fails",
            )
        )
    finally:
        connections.close_all()  # this thread's


def _presentable(check: Check, finding: Finding, secrets: Secrets) -> Finding:
    return replace(
        finding,
        seen=secrets.hidden(" ".join(finding.seen.split())),
        advice=secrets.hidden(finding.advice),
        doc=finding.doc or f"{DOC}#{check.subject}",
    )
