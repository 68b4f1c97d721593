"""Puts what was seen of a failure into the shape that attribution judges."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from errno import errorcode
from typing import Any
from urllib.parse import urlsplit

from streaming.core.attribution import Evidence, Probe
from streaming.core.failures import AttemptFailed, Cause
from streaming.fleet.nodes import Health

_STATUS = re.compile(r"\bHTTP (\d{3})\b")
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_UNREACHABLE = re.compile(
    r"connection timeout|timed out|no route|unreachable|host is down|name or service|resolution"
)


@dataclass(frozen=True, slots=True)
class Sight:
    """What one stream saw. (Never its exception, which would keep the whole stream in memory.)

    ``told`` is what the dialect has put into ``failure.evidence``: ``status`` (HTTP), ``errno`` (its
    name), and of ``TCP_INFO`` ``retransmits`` and ``probes``, how often in a row.
    """

    cause: Cause
    detail: str
    told: Mapping[str, Any]

    @classmethod
    def of(cls, failure: AttemptFailed) -> Sight:
        return cls(failure.cause, failure.detail, getattr(failure, "evidence", None) or {})


def evidence_of(sight: Sight, **more: Any) -> Evidence:
    """As attribution judges it. ``more``: other fields of ``Evidence``."""
    words = printable(sight.detail)
    status, errno = _STATUS.search(words), _ERRNO.search(words)
    told = sight.told
    return Evidence(
        seen=sight.cause,
        said=words,
        status=told.get("status") or (int(status[1]) if status else None),
        errno=told.get("errno") or (errorcode.get(int(errno[1])) if errno else None),
        unanswered=_unanswered(told),
        **more,
    )


def probe_found(health: Health, reason: str) -> Probe:
    """What a node's health says of its last probe."""
    if health is Health.UP:
        return Probe.UP
    if health is not Health.DOWN:
        return Probe.NOT_YET
    words = reason.lower()
    if words.startswith("refused"):
        return Probe.UNREACHABLE if _UNREACHABLE.search(words) else Probe.REFUSED
    if words.startswith(("stalled", "no answer")):
        return Probe.NO_ANSWER
    return Probe.ERROR


async def knock(base_url: str, timeout: float) -> Probe:
    """Whether the node's kernel takes a connection, and nothing more.

    It tells a stopped process (``NO_ANSWER``: its kernel connects in its place) from one that has
    ended (``REFUSED``) and from a host that cannot be reached. A probe over a connection that was
    open already cannot.
    """
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except ConnectionRefusedError:
        return Probe.REFUSED
    except OSError:  # no route, no such name, and ``TimeoutError``
        return Probe.UNREACHABLE
    writer.close()
    return Probe.NO_ANSWER


def printable(text: str) -> str:
    """``text`` as a JSON column can hold it: no NUL, no lone surrogates."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def _unanswered(told: Mapping[str, Any]) -> int | None:
    """Keep-alive probes and segments sent again, without an answer."""
    figures = [told[name] for name in ("retransmits", "probes") if name in told]
    return sum(figures) if figures else None
