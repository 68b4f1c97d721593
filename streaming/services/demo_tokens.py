"""Short-lived tokens for the demo page, so that the browser never holds an API key."""

from __future__ import annotations

from django.core import signing

PREFIX = "ubd_"
DEMO_TENANT = "demo"
_SALT = "unbroken.demo"
MAX_AGE = 12 * 3600


def mint_demo_token(end_user: str) -> str:
    """A token with which ``end_user`` may chat as the demo tenant, for ``MAX_AGE`` seconds."""
    return PREFIX + signing.dumps(end_user, salt=_SALT)


def read_demo_token(token: str, max_age: int = MAX_AGE) -> str | None:
    """The end user of a token; None when it is forged or too old."""
    try:
        return signing.loads(token.removeprefix(PREFIX), salt=_SALT, max_age=max_age)
    except signing.BadSignature:
        return None
