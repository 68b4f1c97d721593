"""Who runs a command: what is noted as having done it."""

from __future__ import annotations

import getpass


def operator_name() -> str:
    """As an actor: for example ``command:alice``."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        name = "somebody"
    return f"command:{name}"
