"""Origins of web pages, as browsers spell them: ``scheme://host[:port]`` (RFC 6454)."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

MAX_LENGTH = 255
DEFAULT_PORTS = {"http": 80, "https": 443}

_HOST = re.compile(
    r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*|\[[0-9a-f:.]+\]"
)


def origin_of(text: str) -> str:
    """``text`` as a browser's ``Origin`` header would have it. Raises ``ValueError`` saying what is wrong.

    Names with letters beyond ASCII become ``xn--…``, a scheme's own port is left out.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"an origin has at most {MAX_LENGTH} characters")
    if "*" in text:
        raise ValueError("wildcards are not supported: name each origin")
    try:
        parts = urlsplit(text)
        port = parts.port
        host = _spelled(parts.hostname or "")
    except ValueError:
        raise ValueError("it is no origin: use scheme://host[:port]") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise ValueError("an origin begins with https:// or http://")
    # urlsplit drops tabs and line ends, so that what it saw is not what was written.
    if not text.isprintable() or " " in text or not _HOST.fullmatch(host):
        raise ValueError("it is no origin: use scheme://host[:port]")
    if parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("an origin is scheme://host[:port], without a path")
    is_usual = port is None or port == DEFAULT_PORTS[parts.scheme]
    return f"{parts.scheme}://{host}" + ("" if is_usual else f":{port}")


def origins_of(lines: str) -> list[str]:
    """The origins of a text with one a line, each once. Raises ``ValueError`` naming the wrong one."""
    found: dict[str, None] = {}
    for line in lines.splitlines():
        if not line.strip():
            continue
        try:
            found[origin_of(line.strip())] = None
        except ValueError as exc:
            raise ValueError(f"{line.strip():.80}: {exc}.") from None
    return list(found)


def _spelled(host: str) -> str:
    if ":" in host:
        return f"[{host}]"
    if host.isascii():
        return host.lower()
    return host.encode("idna").decode()  # UnicodeError is a ValueError
