"""The one HTTP client towards engines, and the translation of what can go wrong on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import orjson
from aiohttp import ClientSession, ClientTimeout, TCPConnector
from httpx_aiohttp import AiohttpTransport

from streaming.conf import conf
from streaming.core.failures import AttemptFailed, Cause, RejectedByEngine

# What a client got wrong; every other 4xx is about the node (its key, its load, its routes).
CLIENT_STATUSES = frozenset({400, 413, 422})
BUSY_STATUSES = frozenset({429, 503})


def engine_client() -> httpx.AsyncClient:
    """A client whose streams never time out by themselves: the runner's stall timers decide."""

    def session() -> ClientSession:
        # Any number of streams per node; idle connections are kept for the next attempt.
        connector = TCPConnector(limit=0, keepalive_timeout=30, enable_cleanup_closed=True)
        return ClientSession(
            connector=connector,
            timeout=ClientTimeout(total=None),
            read_bufsize=64 * 1024,
            auto_decompress=False,
        )

    return httpx.AsyncClient(
        transport=AiohttpTransport(client=session),
        timeout=httpx.Timeout(None, connect=conf().engine_connect_timeout),
        headers={"accept-encoding": "identity"},
        follow_redirects=False,
        trust_env=False,
    )


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn transport errors into ``AttemptFailed``."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as exc:
        raise AttemptFailed(Cause.REFUSED, _words(exc)) from exc
    except httpx.RemoteProtocolError as exc:
        raise AttemptFailed(Cause.CLOSED, _words(exc)) from exc
    except httpx.TimeoutException as exc:
        raise AttemptFailed(Cause.STALLED, _words(exc)) from exc
    except (httpx.HTTPError, httpx.StreamError, OSError) as exc:
        raise AttemptFailed(Cause.RESET, _words(exc)) from exc


def _words(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"


@asynccontextmanager
async def stream_post(
    client: httpx.AsyncClient, url: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> AsyncIterator[httpx.Response]:
    """POST and hand over the open response once its status is good.

    Raises ``AttemptFailed`` or ``RejectedByEngine``; leaving the block closes the connection, which
    aborts the request at the engine.
    """
    with translated_errors():
        request = client.build_request(
            "POST",
            url,
            content=orjson.dumps(body),
            headers={"content-type": "application/json", **headers},
        )
        response = await client.send(request, stream=True)
        try:
            if response.status_code != 200:
                raise_for_status(
                    response.status_code, await _limited_body(response), response.headers
                )
            yield response
        finally:
            await response.aclose()


async def call(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout: float = 10.0,
) -> Any:
    """A short request; the JSON of the answer. Raises as ``stream_post`` does."""
    with translated_errors():
        response = await client.request(
            method, url, content=None if body is None else orjson.dumps(body),
            headers={"content-type": "application/json"}, timeout=timeout,
        )  # fmt: skip
    if response.status_code != 200:
        raise_for_status(response.status_code, response.content, response.headers)
    return parsed(response.content)


def parsed(data: bytes) -> Any:
    """JSON from an engine. Raises ``AttemptFailed``: half an event, a lone surrogate, …"""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise AttemptFailed(Cause.MALFORMED, f"{exc}: {data[:80]!r}") from exc


async def _limited_body(response: httpx.Response) -> bytes:
    body = b""
    async for part in response.aiter_raw():
        body += part
        if len(body) > 16 * 1024:
            break
    return body


def raise_for_status(status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """Raise what an HTTP status other than 200 means."""
    message = error_message(body) or f"HTTP {status}"
    if status in CLIENT_STATUSES:
        raise RejectedByEngine(status, message)
    retry_after = headers.get("retry-after", "")
    raise AttemptFailed(
        Cause.BUSY if status in BUSY_STATUSES else Cause.BAD_STATUS,
        f"HTTP {status}: {message}",
        retry_after=float(retry_after) if retry_after.isdecimal() else None,
    )


def raise_for_error(error: Any) -> None:
    """Raise what an error object inside a stream means: its 4xx are the client's."""
    fields = error if isinstance(error, dict) else {"message": str(error)}
    message = str(fields.get("message", error))
    code = fields.get("code")
    if isinstance(code, int) and code in CLIENT_STATUSES:
        raise RejectedByEngine(code, message)
    raise AttemptFailed(Cause.ENGINE_ERROR, message)


def error_message(body: bytes) -> str:
    """The message of an error body in any of the shapes that engines use."""
    try:
        value = orjson.loads(body)  # refuses lone surrogates, which nobody could pass on
    except ValueError:
        return body[:200].decode(errors="replace").strip()
    error = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(error, dict):
        return str(error.get("message") or error.get("detail") or error)
    return str(error)
