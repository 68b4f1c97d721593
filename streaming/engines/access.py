"""Asking one node: where it is, what it wants to see of us, and the ways to ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import httpx
import orjson

from streaming.core.failures import AttemptFailed, Cause
from streaming.core.nodes import NodeOptions, check_address
from streaming.engines.credentials import CredentialMissing, Credentials
from streaming.engines.http import (
    EngineClient,
    parsed,
    raise_for_status,
    translated_errors,
)

# What an engine answers for a call that its flags have left out.
NOT_OFFERED = frozenset({403, 404, 405, 501})


class Access:
    """How one node is reached: where it is, and what it wants to see of us."""

    def __init__(
        self,
        client: EngineClient,
        base_url: str,
        options: NodeOptions,
        *,
        always: Mapping[str, str] | None = None,
    ) -> None:
        """``always``: headers of every request. Raises ``ValueError`` for an address that holds a secret."""
        check_address(base_url)
        self.client = client
        self.base_url = base_url
        self._always = {"content-type": "application/json", **(always or {})}
        self.credentials = Credentials(options)

    def __repr__(self) -> str:
        return f"<Access {self.base_url} {self.credentials!r}>"

    def headers(self) -> dict[str, str]:
        """For one request; the connection it may need is made as the node wants it by now."""
        try:
            if self.base_url.startswith("https:"):
                self.client.use_tls(self.base_url, self.credentials.tls())
            return {**self._always, **self.credentials.headers()}
        except CredentialMissing as exc:
            raise AttemptFailed(Cause.REFUSED, str(exc)) from None

    def refuse(self, status: int, body: bytes, headers: Mapping[str, str]) -> NoReturn:
        """Raise what a status means that is not 200."""
        raise_for_status(status, self.credentials.redacted(body), headers)


async def ask(
    access: Access,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout: float = 10.0,
) -> httpx.Response:
    """A short request, whatever its status. Raises ``AttemptFailed`` when no answer comes."""
    with translated_errors():
        return await access.client.short.request(
            method, access.base_url + path, content=None if body is None else orjson.dumps(body),
            headers=access.headers(), timeout=timeout,
        )  # fmt: skip


async def call(
    access: Access,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout: float = 10.0,
) -> Any:
    """A short request; the JSON of the answer. Raises ``AttemptFailed`` or ``RejectedByEngine``."""
    response = await ask(access, method, path, body, timeout=timeout)
    if response.status_code != 200:
        access.refuse(response.status_code, response.content, response.headers)
    return parsed(response.content)


async def optional(
    access: Access,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout: float = 10.0,
) -> bytes | None:
    """What a call says that the engine's flags may have left out; None: they have."""
    response = await ask(access, method, path, body, timeout=timeout)
    if response.status_code in NOT_OFFERED:
        return None
    if response.status_code != 200:
        access.refuse(response.status_code, response.content, response.headers)
    return response.content


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Several requests that have so long together. Raises ``AttemptFailed``."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise AttemptFailed(Cause.STALLED, f"no answer within {seconds:g} s") from None


async def check_health(access: Access, timeout: float) -> None:
    """Both engines answer 200 at ``/health`` when they can work. Raises ``AttemptFailed``."""
    response = await ask(access, "GET", "/health", timeout=timeout)
    if response.status_code != 200:
        raise AttemptFailed(Cause.BAD_STATUS, f"/health: HTTP {response.status_code}")


async def limited(data: AsyncIterator[bytes]) -> bytes:
    """As much of an error's body as is worth reading."""
    body = b""
    async for part in data:
        body += part
        if len(body) > 16 * 1024:
            break
    return body
