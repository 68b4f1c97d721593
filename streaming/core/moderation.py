"""Moderation by models: what a moderator is asked, and what it may say. None is shipped."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


class Verdict(enum.StrEnum):
    """What becomes of the answer."""

    PASS = "pass"
    FLAG = "flag"
    """It goes on, and is put before a reviewer."""
    STOP = "stop"
    """It ends before the window that was judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moderated:
    """The answer that is to be moderated."""

    session_id: UUID
    tenant_id: int
    model: str


class Moderator(Protocol):
    """Judges one answer, window after window, in order; made by ``streaming.ports``.

    Each attempt gets one of its own: it begins where the reader is, with the first window that the
    reader does not have. (What is asked again from the start is not judged again.)
    """

    @property
    def name(self) -> str:
        """What events and the audit log call it."""
        ...

    async def judge(self, window: str) -> Verdict:
        """``window``: what is shown next, masks applied, if it may be. It waits for the verdict, but
        no longer than ``MODERATION_SECONDS``; then, or if this raises, ``MODERATION_FAILS`` decides.
        """
        ...
