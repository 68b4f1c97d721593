"""The public address as a stranger sees it: no key is needed for any of this."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from urllib.parse import urlsplit

import aiohttp

from gateway_project.doctor.certificates import judge_certificate, read_certificate
from gateway_project.doctor.clocks import offset_of_date
from gateway_project.doctor.finding import Finding, failure, left_out, note, ok, warning
from gateway_project.doctor.postgres import judge_clock
from gateway_project.doctor.public import ANSWER_SECONDS, Public, session
from streaming.conf import conf

PROXIES = "docs/timeouts.md#the-proxy-in-front"
SUBPROTOCOL = "unbroken.v1"
LAG_WARNING, LAG_FAILURE = 0.5, 5.0


# --- reading ----------------------------------------------------------------------------------------


def look(public: Public) -> Iterator[Finding]:
    try:
        addresses = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(public.host, None)})
    except OSError as exc:
        yield failure("name", f"{public.host} has no address: {exc}", "See its DNS records.")
        return
    yield ok("name", f"{public.host} is {', '.join(addresses)}")
    try:
        certificate = read_certificate(public.url, public.tls())
    except OSError as exc:
        yield failure(
            "reachable",
            f"{public.url} does not answer: {exc}",
            "See that the proxy listens, and firewalls.",
        )
        return
    if certificate is not None:
        yield judge_certificate("TLS", certificate)
        yield judge_alpn(certificate.alpn)
        if certificate.trouble:
            return
    elif not public.is_local:
        yield warning(
            "TLS",
            "the address is http: keys and answers can be read on the way",
            "Put TLS in front.",
            "docs/operations.md",
        )
    yield from asyncio.run(_all(public))


async def _all(public: Public) -> list[Finding]:
    found: list[Finding] = []
    try:
        async with session(public, keeps=True) as client:
            async for finding in _ask(public, client):
                found.append(finding)
    except (aiohttp.ClientError, OSError, TimeoutError) as exc:
        words = f"{type(exc).__name__}: {exc}".rstrip(": ")
        found.append(
            failure(
                "reachable",
                f"{public.url} does not answer: {words}",
                "See the proxy, and the gateways behind it.",
            )
        )
    return found


async def _ask(public: Public, client: aiohttp.ClientSession) -> AsyncIterator[Finding]:
    reused: list[bool] = []
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(_noting(reused))
    tracing.freeze()
    client.trace_configs.append(tracing)
    asked_at = time.time()
    status, headers, body = await _get(client, f"{public.url}/healthz")
    # Some keep it for their balancers; the API's document is for everybody.
    again = await _get(client, f"{public.url}/v1/openapi.json")
    yield judge_health(status, body, is_api=again[0] == 200 and b"Unbroken" in again[2])
    if again[0] != 200:
        return
    yield judge_keep_alive(bool(reused))
    if (offset := offset_of_date(headers.get("date"), asked_at)) is not None:
        yield judge_clock("clock", "the address's", offset)
    yield judge_ready(*await _get(client, f"{public.url}/readyz"))
    status, _, _ = await _get(client, f"{public.url}/metrics")
    yield judge_metrics(status, is_local=public.is_local)
    if tokens := conf().metrics_tokens:
        yield await _journal(public, client, tokens[0])
    if public.url.startswith("https:"):
        yield await _redirect(public, client)
    yield await _websocket(public, client)
    if public.origin:
        yield await _preflight(public, client)


def _noting(reused: list[bool]) -> Callable[..., Awaitable[None]]:
    async def note_reuse(*_: object) -> None:
        reused.append(True)

    return note_reuse


async def _get(client: aiohttp.ClientSession, url: str) -> tuple[int, Mapping[str, str], bytes]:
    async with client.get(url, allow_redirects=False) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return response.status, headers, await response.read()


async def _redirect(public: Public, client: aiohttp.ClientSession) -> Finding:
    url = f"http://{public.host}/healthz"
    try:
        status, headers, _ = await _get(client, url)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return ok("redirect", "nothing answers at the http address")
    return judge_redirect(status, headers.get("location", ""))


async def _journal(public: Public, client: aiohttp.ClientSession, token: str) -> Finding:
    """What the metrics say of the journal; a proxy may well keep them inside."""
    headers = {"authorization": f"Bearer {token}"}
    async with client.get(f"{public.url}/metrics", headers=headers) as response:
        lag = re.search(
            rb"^unbroken_journal_lag_seconds ([\d.eE+-]+)", await response.read(), re.MULTILINE
        )
    if lag is None:
        return left_out("journal", f"/metrics is answered with HTTP {response.status} here")
    return judge_journal(float(lag[1]))


async def _websocket(public: Public, client: aiohttp.ClientSession) -> Finding:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            socket_ = await client.ws_connect(f"{public.url}/ws/chat/", protocols=[SUBPROTOCOL])
    except aiohttp.WSServerHandshakeError as exc:
        return judge_websocket(exc.status, "")
    except (aiohttp.ClientError, OSError, TimeoutError) as exc:
        return judge_websocket(0, f"{type(exc).__name__}: {exc}".rstrip(": "))
    await socket_.close()
    return judge_websocket(101, "")


async def _preflight(public: Public, client: aiohttp.ClientSession) -> Finding:
    asked = {
        "origin": public.origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, idempotency-key",
    }
    async with client.options(f"{public.url}/v1/chat/completions", headers=asked) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return judge_preflight(public.origin, response.status, headers)


# --- judging ----------------------------------------------------------------------------------------


def judge_alpn(alpn: str) -> Finding:
    if alpn == "h2":
        return ok("HTTP/2", "is offered")
    return note(
        "HTTP/2",
        "is not offered",
        "Browsers open at most six HTTP/1.1 connections: with more tabs open, streams wait.",
    )


def judge_health(status: int, body: bytes, *, is_api: bool) -> Finding:
    """``is_api``: whether the API's document is there."""
    try:
        is_ours = status == 200 and json.loads(body).get("status") == "ok"
    except (ValueError, AttributeError):
        is_ours = False
    if is_ours and is_api:
        return ok("reachable", "a gateway answers")
    if is_api:
        return note(
            "reachable",
            f"a gateway answers; /healthz is kept from the public (HTTP {status})",
            "Nothing is wrong with that.",
        )
    if 300 <= status < 400:
        return failure(
            "reachable",
            f"/healthz is redirected (HTTP {status})",
            "Give the address that it redirects to.",
        )
    if status in (502, 503, 504):
        return failure(
            "reachable",
            f"the proxy finds no gateway (HTTP {status})",
            "See its upstreams, and that gateways run.",
        )
    return failure(
        "reachable",
        f"no gateway answers: HTTP {status} at /healthz",
        "Pass all paths to the gateways.",
    )


def judge_keep_alive(reused: bool) -> Finding:
    if reused:
        return ok("keep-alive", "connections are used again")
    return warning(
        "keep-alive",
        "each request costs a new connection",
        "HTTP/1.1 with keep-alive at the proxy.",
        PROXIES,
    )


def judge_ready(status: int, _: Mapping[str, str], body: bytes) -> Finding:
    try:
        told = json.loads(body)
        state, reasons = str(told["status"]), ", ".join(map(str, told["reasons"]))
    except (ValueError, KeyError, TypeError):
        return note(
            "ready",
            f"/readyz is answered with HTTP {status}",
            "Nothing is wrong with keeping it inside.",
        )
    if state == "ok":
        return ok("ready", "it takes new sessions")
    if state == "degraded":
        return warning("ready", f"degraded: {reasons}", "See the findings about Redis and nodes.")
    return failure("ready", f"{state}: {reasons}", "See the findings about the database.")


def judge_metrics(status: int, *, is_local: bool) -> Finding:
    if status == 200 and not is_local:
        return failure(
            "metrics", "/metrics is open to everybody", "Set METRICS_TOKEN.", "docs/metrics.md"
        )
    return ok("metrics", f"/metrics is answered with HTTP {status} without the token")


def judge_journal(lag: float) -> Finding:
    """``lag``: seconds for which the oldest row waits to become durable."""
    seen = f"its oldest row waits for {lag:.2f} s"
    if lag > LAG_FAILURE:
        return failure(
            "journal",
            f"{seen}: readers see answers stand still",
            "See the database's commit time and log.",
            "docs/metrics.md",
        )
    if lag > LAG_WARNING:
        return warning("journal", seen, "See the database's commit time.", "docs/metrics.md")
    return ok("journal", seen)


def judge_redirect(status: int, location: str) -> Finding:
    if 300 <= status < 400 and urlsplit(location).scheme == "https":
        return ok("redirect", "http is redirected to https")
    return warning(
        "redirect",
        f"http is answered with HTTP {status}",
        "Redirect it to https (301).",
        "docs/operations.md",
    )


def judge_websocket(status: int, trouble: str) -> Finding:
    if status == 101:
        return ok("WebSocket", "the connection is upgraded")
    seen = trouble or f"the upgrade is answered with HTTP {status}"
    return failure(
        "WebSocket",
        f"{seen}: clients fall back to server-sent events",
        "Pass the Upgrade and Connection headers of /ws/ on, over HTTP/1.1.",
        PROXIES,
    )


def judge_preflight(origin: str, status: int, headers: Mapping[str, str]) -> Finding:
    allowed = headers.get("access-control-allow-origin", "")
    if status == 403:
        return failure(
            "origin",
            f"no tenant allows pages of {origin}",
            "`manage.py allow_origin`, or the tenant's page in the admin.",
            "docs/security.md",
        )
    if status in (200, 204) and allowed in (origin, "*"):
        if allowed == "*":
            return warning(
                "origin",
                "the answer allows every origin: the proxy adds headers of its own",
                "Leave CORS to the gateway.",
                "docs/security.md",
            )
        return ok("origin", f"pages of {origin} may ask")
    return failure(
        "origin",
        f"its preflight is answered with HTTP {status} and {f'the origin {allowed}' if allowed else 'no allowed origin'}",
        "Let OPTIONS and the Origin header pass to the gateway.",
        "docs/security.md",
    )


def without_url() -> Iterator[Finding]:
    yield left_out("address", "give the public address: --url https://…")
