"""Engines that are reached by an address and know themselves by a name."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx


class HostNames(httpx.AsyncBaseTransport):
    """Requests to an address that was found by its name carry the name, in HTTP and in TLS."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport
        self._names: dict[bytes, tuple[str, str]] = {}

    def remember(self, base_url: str, name_url: str) -> None:
        """What is at ``base_url`` was found by the host of ``name_url``."""
        name = urlsplit(name_url)
        self._names[httpx.URL(base_url).netloc] = (name.netloc, name.hostname or "")

    def forget(self, base_url: str) -> None:
        """Does nothing for an address that has no name."""
        self._names.pop(httpx.URL(base_url).netloc, None)

    def host(self, base_url: str) -> str | None:
        """The name that a certificate at this address is for; None: the address itself."""
        return self.of(httpx.URL(base_url).netloc)[1]

    def of(self, netloc: bytes) -> tuple[str, str | None]:
        """What requests to an address have as their host, and ``host``."""
        return self._names.get(netloc) or (netloc.decode(), None)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        name = self._names.get(request.url.netloc)
        if name is not None:
            request.headers["host"], hostname = name
            request.extensions = {**request.extensions, "sni_hostname": hostname}
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()
