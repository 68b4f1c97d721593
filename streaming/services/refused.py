"""What operators ask for and cannot have."""

from __future__ import annotations


class Refused(Exception):
    """It cannot be done; the message says why, in words for whoever asked."""
