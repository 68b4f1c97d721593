"""The request as a consumer sees it, whichever ASGI server received it."""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from django.conf import settings

from streaming.conf import conf
from streaming.consumers.page import Page
from streaming.errors import InvalidRequest, RequestTooLarge

_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MAX_QUERY_FIELDS = 100

Receive = Callable[[], Awaitable[dict[str, Any]]]
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class ClientDisconnected(Exception):
    """The client left before its request was complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request. ``headers`` and ``query`` hold the last value of a repeated name."""

    method: str
    path: str
    params: Mapping[str, Any]
    """The captured parts of the URL pattern."""
    headers: Mapping[str, str]
    """Names in lower case."""
    query: Mapping[str, str]
    body: bytes
    client: str
    """The client's IP address as text; empty when unknown."""
    request_id: str
    page: Page
    """The web page behind it, if there is one."""

    def header(self, name: str, default: str | None = None) -> str | None:
        """The value of a header; ``name`` in any case."""
        return self.headers.get(name.lower(), default)


def decoded_headers(scope: Mapping[str, Any]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def request_id(headers: Mapping[str, str]) -> str:
    """The client's own ``X-Request-Id`` if it is fit for logs and headers, else a new one."""
    wanted = headers.get("x-request-id", "")
    return wanted if _SANE_REQUEST_ID.fullmatch(wanted) else uuid.uuid4().hex


def named_end_user(headers: Mapping[str, str]) -> str | None:
    """The end user that a backend speaks for: ``X-Unbroken-User``; None where it names none."""
    user = headers.get("x-unbroken-user")
    # Names may be of any script; header values reach us as Latin-1.
    return None if user is None else user.encode("latin-1").decode("utf-8", "replace").strip()


async def read_request(
    scope: Mapping[str, Any],
    receive: Receive,
    headers: Mapping[str, str],
    request_id: str,
    page: Page,
) -> Request:
    """Read the whole request.

    Raises RequestTooLarge (before reading, when the client says so), InvalidRequest, or
    ClientDisconnected.
    """
    query = parsed_query(scope.get("query_string", b""))
    return Request(
        method=scope["method"],
        path=scope["path"],
        params=scope.get("url_route", {}).get("kwargs", {}),
        headers=headers,
        query=query,
        body=await _read_body(receive, headers.get("content-length")),
        client=client_address(scope.get("client"), headers.get("x-forwarded-for", "")),
        request_id=request_id,
        page=page,
    )


async def _read_body(receive: Receive, content_length: str | None) -> bytes:
    limit = conf().max_body_bytes
    if content_length is not None and content_length.isdecimal() and int(content_length) > limit:
        raise RequestTooLarge(f"The request body is larger than {limit} bytes.")
    chunks = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise RequestTooLarge(f"The request body is larger than {limit} bytes.")
        chunks.append(chunk)
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def route_of(scope: Mapping[str, Any]) -> str:
    """The path with the names of its captured parts in place of what they captured."""
    path: str = scope["path"]
    for name, value in scope.get("url_route", {}).get("kwargs", {}).items():
        path = path.replace(str(value), f"{{{name}}}")
    return path


def parsed_query(raw: bytes) -> dict[str, str]:
    """Raises InvalidRequest when there are too many fields."""
    if not raw:
        return {}
    try:
        fields = parse_qsl(
            raw.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS
        )
    except ValueError as exc:
        raise InvalidRequest("The query string has too many fields.") from exc
    return dict(fields)


def client_address(peer: Any, forwarded_for: str) -> str:
    """The client's address: the peer, or what its trusted proxies say (``X-Forwarded-For``).

    Read from the right: each trusted proxy has appended the address it saw, so the first one that
    is not trusted is the client; what stands left of it the client may have made up.
    """
    address = _address(peer[0]) if peer else None
    if address is None:
        return ""
    trusted = _networks(tuple(getattr(settings, "TRUSTED_PROXIES", ())))
    hops = forwarded_for.split(",") if forwarded_for else []
    while hops and any(address in network for network in trusted):
        hop = _address(hops.pop())
        if hop is None:
            break
        address = hop
    return str(address)


@lru_cache(maxsize=8)
def _networks(proxies: tuple[str, ...]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return [ipaddress.ip_network(proxy, strict=False) for proxy in proxies]


def _address(text: str) -> IPAddress | None:
    """Parse ``192.0.2.1``, ``192.0.2.1:80``, ``2001:db8::1`` or ``[2001:db8::1]:80``."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    # An IPv4 client on a dual-stack socket.
    return getattr(address, "ipv4_mapped", None) or address
