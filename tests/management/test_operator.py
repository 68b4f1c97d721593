"""Who ran a command: the system is asked, not the environment."""

from __future__ import annotations

import os
import pwd

from streaming.management.operator import operator_name


def test_nobody_names_themselves(monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    assert operator_name() == f"command:{pwd.getpwuid(os.getuid()).pw_name}"


def test_a_user_without_a_name_is_a_number(monkeypatch):
    unnamed = max(entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid < 2**31) - 1
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    while unnamed in taken:
        unnamed -= 1
    monkeypatch.setattr(os, "getuid", lambda: unnamed)
    assert operator_name() == f"command:{unnamed}"
