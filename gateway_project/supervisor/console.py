"""What ``serve`` tells the operator: one line at a time, on stdout."""

from __future__ import annotations

import sys


def say(name: str, words: str) -> None:
    sys.stdout.write(f"{name:<10} {words}\n")
    sys.stdout.flush()
