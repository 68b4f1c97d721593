"""``/metrics`` for Prometheus."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from typing import Any

from streaming.conf import conf
from streaming.consumers.base import StreamConsumer
from streaming.consumers.request import Request
from streaming.errors import ShuttingDown
from streaming.runtime.gateway import current
from streaming.services.exposition import render, seen_now

PROXY_HEADERS = ("via", "forwarded", "x-forwarded-for", "x-real-ip")


class MetricsConsumer(StreamConsumer):
    """Answers who has the token; without one configured, who asks on this machine."""

    open_to_pages = False
    traced = False

    async def handle(self, request: Request) -> None:
        if refusal := self._refusal(request):
            status, words = refusal
            await self._respond_text(status, words.encode(), "text/plain; charset=utf-8")
            return
        try:
            families = seen_now(current(), self._loop.time())
        except ShuttingDown:  # not started yet: the others' figures all the same
            families = []
        accept = request.header("accept") or ""
        # Merging everybody's files takes a while, and streams are not to wait for it.
        body, content_type = await asyncio.to_thread(render, families, accept)
        await self._respond_text(200, body, content_type)

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        """Status and words for who may not read this."""
        tokens = conf().metrics_tokens
        if not tokens:
            if _asks_from_here(self.scope, request):
                return None
            return 403, "Without a METRICS_TOKEN only readers on the same machine are answered.\n"
        scheme, _, given = (request.header("authorization") or "").partition(" ")
        if scheme.lower() == "bearer" and any(
            hmac.compare_digest(given.strip().encode(), token.encode()) for token in tokens
        ):
            return None
        return 401, "Authorization: Bearer METRICS_TOKEN is needed.\n"

    async def _respond_text(self, status: int, body: bytes, content_type: str) -> None:
        headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
        ]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await self._start(status, headers)
        self.finished = True
        await self.base_send({"type": "http.response.body", "body": body, "more_body": False})


def _asks_from_here(scope: dict[str, Any], request: Request) -> bool:
    """Whether the peer is on this machine, and no proxy on it that asks for somebody else.

    Our server tells of headers that it drops because the proxy is not in TRUSTED_PROXIES.
    """
    client = scope.get("client")
    is_forwarded = "unbroken.forwarded" in scope.get("extensions", {}) or any(
        request.header(name) for name in PROXY_HEADERS
    )
    if client is None or is_forwarded:
        return False
    return _is_loopback(str(client[0])) and _is_loopback(_host_name(request.header("host") or ""))


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_loopback(name: str) -> bool:
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False
