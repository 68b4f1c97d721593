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
    Stream,
    parsed,
    raise_for_status,
    translated_errors,
)
from streaming.engines.sockets import Watch

# What an engine answers for a call that its flags have left out.
NOT_OFFERED = frozenset({403, 404, 405, 501})


class Access:
    """How one node is reached: where it is, and what it wants to see of us."""

    def __init__(self, client: EngineClient, base_url: str, options: NodeOptions) -> None:
        """Raises ``ValueError`` for an address that holds a secret."""
        check_address(base_url)
        self.client = client
        self.base_url = base_url
        self.credentials = Credentials(options)

    def __repr__(self) -> str:
        return f"<Access {self.base_url} {self.credentials!r}>"

    def headers(self) -> dict[str, str]:
        """For one request; the connection it may need is made as the node wants it by now."""
        try:
            if self.base_url.startswith("https:"):
                self.client.use_tls(self.base_url, self.credentials.tls())
            return {"content-type": "application/json", **self.credentials.headers()}
        except CredentialMissing as exc:
            raise AttemptFailed(Cause.REFUSED, str(exc)) from None

    def refuse(self, status: int, body: bytes, headers: Mapping[str, str]) -> NoReturn:
        """Raise what a status means that is not 200."""
        raise_for_status(status, self.credentials.redacted(body), headers)


@asynccontextmanager
async def stream_post(
    access: Access, path: str, body: Mapping[str, Any], headers: Mapping[str, str], watch: Watch
) -> AsyncIterator[AsyncIterator[bytes]]:
    """POST and hand over the body, as it comes in, once the status is good.

    Raises ``AttemptFailed``, with the evidence of its connection, or ``RejectedByEngine``; leaving
    the block closes the connection, which aborts the request at the engine.
    """
    client = access.client
    watch.limit = client.longest_silence
    try:
        with translated_errors():
            reply = await client.post(
                access.base_url + path, orjson.dumps(body), {**access.headers(), **headers}
            )
            try:
                if reply.status != 200:
                    access.refuse(reply.status, await _limited_body(reply), reply.headers)
                with client.guard.over(watch, reply.connection):
                    yield aiter(reply)
            finally:
                await reply.aclose()
    except AttemptFailed as failure:
        failure.evidence = {**watch.facts(), **failure.evidence}
        if watch.was_cut:
            silence = f"not a byte for {watch.limit:g} s: the connection is cut"
            raise AttemptFailed(Cause.STALLED, silence, evidence=failure.evidence) from failure
        raise


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
    """A short request; the JSON of the answer. Raises as ``stream_post`` does."""
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


async def _limited_body(reply: Stream) -> bytes:
    body = b""
    async for part in reply:
        body += part
        if len(body) > 16 * 1024:
            break
    return body
