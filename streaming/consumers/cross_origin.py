"""Cross-origin requests of browsers: what may be asked, and who may read the answer (CORS).

Never with credentials: what a foreign page may do it does with a token that it holds, not with
cookies that its browser sends along.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from streaming.runtime.gateway import current
from streaming.services.origins import allowed_origins

Header = tuple[bytes, bytes]

PREFLIGHT_SECONDS = 600
_EXPOSED = (
    b"X-Session-Id, X-Request-Id, X-Server-Time, Retry-After, x-ratelimit-limit-requests, "
    b"x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    b"x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
_VARY = (b"vary", b"Origin")
# Any a client may want to send, if it is spelled like one: none of them grants anything.
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+( ?, ?[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_MAX_HEADER_NAMES = 2000


async def is_allowed_by_any(origin: str) -> bool:
    """Whether any tenant allows ``origin``. Raises ``ShuttingDown``, and what databases raise."""
    return await allowed_origins.has(current().pool, origin)


def is_preflight(scope: Mapping[str, Any]) -> bool:
    return _header(scope, b"access-control-request-method") is not None


def answer_headers(origin: str | None) -> list[Header]:
    """What goes with every answer; with an ``origin``, its pages may read it."""
    if origin is None:
        return [_VARY]
    return [
        _VARY,
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", _EXPOSED),
    ]


def preflight_headers(scope: Mapping[str, Any], methods: Sequence[str]) -> list[Header]:
    """Besides ``answer_headers``."""
    headers = [
        (b"access-control-allow-methods", ", ".join(methods).encode()),
        (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
    ]
    wanted = _header(scope, b"access-control-request-headers") or b""
    if len(wanted) <= _MAX_HEADER_NAMES and _HEADER_NAMES.fullmatch(wanted):
        headers.append((b"access-control-allow-headers", wanted))
    return headers


def _header(scope: Mapping[str, Any], name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)
