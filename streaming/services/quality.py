"""The level and the variant of a session: its credential's, and what its request asks for."""

from __future__ import annotations

from dataclasses import replace

from streaming.core.levels import VARIANT, Level
from streaming.errors import InvalidRequest, NotPermitted
from streaming.runtime.live import Principal


def with_quality(principal: Principal, level: str | None, variant: str | None) -> Principal:
    """``principal`` with the level and the variant that its request asks for; None: it does not ask.

    A credential's own variant counts whatever the request says: who hands out embed tokens decides
    who is on which side. Raises ``NotPermitted`` for a better level than the credential's, and
    ``InvalidRequest``.
    """
    if level is not None:
        principal = replace(principal, level=_level(principal, level))
    if variant is not None:
        if not VARIANT.fullmatch(variant):
            raise InvalidRequest(
                "The variant must be 1 to 32 letters, digits, dots, dashes or underscores.",
                param="variant",
            )
        principal = replace(principal, variant=principal.variant or variant)
    return principal


def _level(principal: Principal, wanted: str) -> Level:
    try:
        level = Level(wanted)
    except ValueError:
        known = ", ".join(level.value for level in Level)
        raise InvalidRequest(f"The level must be one of {known}.", param="level") from None
    if not principal.level.covers(level):
        raise NotPermitted(
            f"The level of this credential is {principal.level.value}: a request may have that or a lower one.",
            param="level",
        )
    return level
