"""Nothing that the doctor says may hold a secret, whoever's error message it repeats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

SHORTEST = 6
"""Shorter ones would be found in ordinary words, and are none worth the name."""
HIDDEN = "[secret]"
_NAMES = re.compile(r"(KEY|KEYS|SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIALS?)$")


class Secrets:
    """``hidden(text)`` is ``text`` without any of ``values``."""

    def __init__(self, values: Iterable[str]) -> None:
        long_enough = {value for value in values if len(value) >= SHORTEST}
        # The longest first: one may stand within another.
        self._values = sorted(long_enough, key=len, reverse=True)

    def __repr__(self) -> str:
        return f"<Secrets: {len(self._values)} values>"

    def hidden(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text


def secrets_of(environment: Mapping[str, str], others: Iterable[str] = ()) -> Secrets:
    """What an environment holds by its variables' names and in its URLs; and ``others``."""
    values = [part for other in others for part in (other, _password(other))]
    for name, value in environment.items():
        if _NAMES.search(name.upper()):
            values += [value, *(part.strip() for part in value.split(","))]
        values.append(_password(value))
    return Secrets([*values, *map(unquote, values)])


def _password(value: str) -> str:
    """The password within a URL; empty where there is none."""
    if "://" not in value:
        found = re.search(r"\bpassword=(\S+)", value)  # libpq's other spelling
        return found[1].strip("'") if found else ""
    try:
        parts = urlsplit(value)
    except ValueError:
        return ""
    return parts.password or ""
