"""Requests to addresses that customers have given us: where they may lead, and how long they take.

A name is resolved once; every address that comes of it must be public (or private where
that is allowed, but never link-local), and the connection goes to one
of them, so a name that changes its mind in between leads nowhere. Redirects are not followed, proxies
of the environment not used, cookies not kept.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from streaming.conf import conf

AT_ONCE = 8
"""Connections to one host."""
READ_BYTES = 4096
TEXT_CHARACTERS = 300
_NEVER = (
    ipaddress.ip_network("169.254.0.0/16"),
    ipaddress.ip_network("fe80::/10"),
    ipaddress.ip_network("fd00:ec2::254/128"),
)
"""Link-local, and one that is not: where clouds hand a machine its credentials."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.ip_network("::/96")
_NOT_PUBLIC = (_LOCAL_NAT64, _COMPATIBLE, ipaddress.ip_network("fec0::/10"))
"""Each network's own, whatever lists of the language's version say."""
_LOCAL_NAMES = (".localhost", ".local", ".internal")


class AddressRefused(Exception):
    """Nothing is sent there. The message says why, and names no address behind a name."""


class Unanswered(Exception):
    """Nobody answered, or not in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``text``: the beginning of the body. ``retry_after``: seconds, where it was said."""

    status: int
    text: str
    retry_after: int | None


def check_url(url: str) -> None:
    """Raises ``AddressRefused`` for an URL that nothing would be sent to, whatever its name leads to."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise AddressRefused(f"{url!r} is no URL: {exc}") from None
    private = conf().webhook_private_addresses
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        raise AddressRefused("the URL must begin with https://")
    if not parts.hostname or parts.username is not None or parts.password is not None:
        raise AddressRefused("the URL must name a host, and neither user nor password")
    if port == 0:
        raise AddressRefused("the URL's port cannot be 0")
    try:
        address = ipaddress.ip_address(parts.hostname)
    except ValueError:
        if not private and f".{parts.hostname.rstrip('.')}".endswith(_LOCAL_NAMES):
            raise AddressRefused(f"{parts.hostname} does not lead to public addresses") from None
        return
    if not is_allowed(address):
        what = "an address that is allowed" if private else "a public address"
        raise AddressRefused(f"{address} is not {what}")


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether it is in the public internet, also where one address stands for another."""
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return all(one.is_global and not one.is_multicast for one in _meant(address))


def is_allowed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether something may be sent there, by the settings."""
    if not conf().webhook_private_addresses:
        return is_public(address)
    return not any(one in network for one in _meant(address) for network in _NEVER)


def _meant(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The IPv4 addresses that one of IPv6 may stand for, or itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    number = int(address)
    inner: list[ipaddress.IPv4Address | None] = [address.ipv4_mapped, address.sixtofour]
    inner += address.teredo or ()
    if any(address in network for network in (_NAT64, _LOCAL_NAT64, _COMPATIBLE)):
        inner.append(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    if address in _LOCAL_NAT64:  # by RFC 6052: around the byte that is always zero
        first, last = number >> 64 & 0xFFFF, number >> 40 & 0xFFFF
        inner.append(ipaddress.IPv4Address(first << 16 | last))
    return [one for one in inner if one is not None] or [address]


@asynccontextmanager
async def outbound() -> AsyncIterator[aiohttp.ClientSession]:
    """A client for ``post``."""
    connector = aiohttp.TCPConnector(
        resolver=_AllowedOnly(), limit_per_host=AT_ONCE, use_dns_cache=False
    )
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"user-agent": "unbroken", "accept-encoding": "identity"},
        auto_decompress=False,
        trust_env=False,
    ) as client:
        yield client


async def post(
    client: aiohttp.ClientSession,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    seconds: float,
) -> Answer:
    """Send it. Raises ``AddressRefused`` or ``Unanswered``."""
    check_url(url)
    try:
        async with (
            asyncio.timeout(seconds),
            client.post(url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            text = (await response.content.read(READ_BYTES)).decode(errors="replace")
            return Answer(response.status, _plain(text), _retry_after(response))
    except TimeoutError:
        raise Unanswered(f"no answer within {seconds:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        raise Unanswered(_plain(f"{type(exc).__name__}: {exc}")) from None


class _AllowedOnly(AbstractResolver):
    """Resolves names to allowed addresses. What it returns is what the connection goes to."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await _resolved(host, port)
        if not all(is_allowed(ipaddress.ip_address(entry["host"])) for entry in found):
            what = "allowed" if conf().webhook_private_addresses else "public"
            raise AddressRefused(f"{host} does not lead to {what} addresses only")
        return found

    async def close(self) -> None:
        """Nothing is open."""


async def _resolved(host: str, port: int) -> list[ResolveResult]:
    """What the system's resolver says. In a thread that nobody waits for when it takes too long, as
    the end of an event loop would wait for one of its own. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()

    def tell(found: list[Any], error: Exception | None) -> None:
        if answer.done():  # nobody waits any more
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found)

    def ask() -> None:
        found: list[Any] = []
        error: Exception | None = None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as exc:
            error = OSError(str(exc))
        try:
            loop.call_soon_threadsafe(tell, found, error)
        except RuntimeError:  # the loop has ended
            return

    threading.Thread(target=ask, daemon=True, name=f"resolve {host}").start()
    return [
        ResolveResult(
            hostname=host,
            host=str(address[0]).partition("%")[0],
            port=address[1],
            family=family,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for family, _, protocol, _, address in await answer
    ]


def _retry_after(response: aiohttp.ClientResponse) -> int | None:
    value = response.headers.get("retry-after", "")
    return int(value) if value.isdecimal() and len(value) < 9 else None


def _plain(text: str) -> str:
    """Fit for one line of a table."""
    return " ".join(text.replace("\x00", "\ufffd").split())[:TEXT_CHARACTERS]
