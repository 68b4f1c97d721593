"""Signatures of webhooks, as the Standard Webhooks specification has them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable

SECRET_PREFIX = "whsec_"


def shown(secret: bytes) -> str:
    """A secret as receivers configure it."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def headers(
    secrets: Iterable[bytes], message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """The headers of a message; one signature for each secret, any of which the receiver may know.

    ``timestamp``: seconds of the Unix clock, at which this try is made.
    """
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    signatures = (hmac.new(secret, signed, hashlib.sha256).digest() for secret in secrets)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(
            f"v1,{base64.b64encode(signature).decode()}" for signature in signatures
        ),
    }
