"""Who runs a command: what is noted as having done it."""

from __future__ import annotations

import os
import pwd


def operator_name() -> str:
    """As an actor: for example ``command:alice``; ``command:1000`` for a user without a name.

    The system says who it is; what stands in the environment anybody could have written.
    """
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's user often has none
        name = str(uid)
    return f"command:{name}"
