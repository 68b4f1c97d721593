"""The certificate of an HTTPS address, and what its handshake agreed on."""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway_project.doctor.finding import Finding, failure, ok, warning

CONNECT_SECONDS = 5.0
DAY = 86_400.0
SOON = 21 * DAY
OLD_PROTOCOLS = ("SSLv3", "TLSv1", "TLSv1.1")
DOC = "docs/operations.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """``left``: seconds until it ends; ``trouble``: why it is not believed. ``alpn``: what the
    server chose of HTTP/2 and HTTP/1.1."""

    left: float = 0.0
    protocol: str = ""
    alpn: str = ""
    trouble: str = ""


def read_certificate(url: str, context: ssl.SSLContext | None = None) -> Certificate | None:
    """None for an address without TLS. Raises ``OSError`` when nothing answers there.

    ``context`` is changed: it offers HTTP/2 from then on.
    """
    parts = urlsplit(url)
    if parts.scheme != "https":
        return None
    host = parts.hostname or ""
    asking = context or ssl.create_default_context()
    asking.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection((host, parts.port or 443), CONNECT_SECONDS) as plain:
        try:
            with asking.wrap_socket(plain, server_hostname=host) as secured:
                told = secured.getpeercert() or {}
                ends = ssl.cert_time_to_seconds(str(told.get("notAfter")))
                return Certificate(
                    left=ends - time.time(),
                    protocol=secured.version() or "",
                    alpn=secured.selected_alpn_protocol() or "",
                )
        except ssl.SSLError as exc:
            return Certificate(trouble=getattr(exc, "verify_message", "") or str(exc.reason or exc))


def judge_certificate(check: str, certificate: Certificate) -> Finding:
    if certificate.trouble:
        return failure(
            check,
            f"its certificate is not believed: {certificate.trouble}",
            "A certificate for this name, with its whole chain; or name the authority.",
            DOC,
        )
    days = certificate.left / DAY
    seen = f"{certificate.protocol}, its certificate is good for {days:.0f} days"
    if certificate.protocol in OLD_PROTOCOLS:
        return failure(check, seen, "TLS 1.2 and 1.3 only.", DOC)
    if certificate.left < SOON:
        return warning(check, seen, "Renew it, and see why that was not done by itself.", DOC)
    return ok(check, seen)
