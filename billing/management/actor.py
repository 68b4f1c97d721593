"""Who runs a command, as the audit log names them."""

from __future__ import annotations

import getpass


def command_actor() -> str:
    """For example ``command:alice``."""
    try:
        return f"command:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user often has no name
        return "command:somebody"
