"""When a node that keeps failing is left alone, and how it comes back. Pure: times are given.

Health says whether a node answers its probe; the circuit, whether attempts on it come to anything.
"""

from __future__ import annotations

import enum
from collections import deque

WINDOW_SECONDS = 10.0
"""Failures further apart are not one trouble."""
LONGEST_PAUSE = 30.0
TRIAL_SECONDS = 10.0
"""A trial without a first token after this long counts as lost; another may be made."""

FIRST_SHARE = 0.1
FULL_AFTER_SECONDS = 10.0
FULL_AFTER_SUCCESSES = 20


class Circuit(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"  # no attempts until a pause is over
    HALF_OPEN = "half_open"  # one attempt is under way to find out


class Breaker:
    """The circuit of one node.

    It opens after ``failures`` failures within ten seconds, if at least half of the attempts failed
    in that time. After a pause one attempt may try; if it gets a token the circuit closes, if not,
    the next pause is twice as long. What counts as a failure is for the caller to say.
    """

    __slots__ = ("_failed", "_failures", "_first_pause", "_outcomes", "_pause", "_until", "state")

    def __init__(self, failures: int = 5, pause: float = 1.0) -> None:
        self.state = Circuit.CLOSED
        self._failures = failures
        self._first_pause = self._pause = pause
        self._until = 0.0  # open: end of the pause; half-open: when the trial counts as lost
        self._outcomes: deque[tuple[float, bool]] = deque()
        self._failed = 0  # of these

    def __repr__(self) -> str:
        return f"<Breaker {self.state.value}>"

    def takes_trial(self, now: float) -> bool:
        """Whether the next attempt would find out if the node works again."""
        return self.state is not Circuit.CLOSED and now >= self._until

    def began(self, now: float) -> None:
        """An attempt begins. On an open circuit it is a trial, also when it comes early."""
        if self.state is Circuit.OPEN or self.takes_trial(now):
            self.state = Circuit.HALF_OPEN
            self._until = now + TRIAL_SECONDS

    def succeeded(self, now: float) -> None:
        """An attempt got its first token."""
        if self.state is Circuit.HALF_OPEN:
            self.close()
        self._note(now, True)

    def failed(self, now: float) -> None:
        """An attempt failed, and it was the node's fault."""
        if self.state is Circuit.HALF_OPEN:
            self._open(now, min(self._pause * 2, LONGEST_PAUSE))
            return
        if self.state is Circuit.OPEN:  # begun before it opened
            return
        self._note(now, False)
        if self._failed >= self._failures and self._failed * 2 >= len(self._outcomes):
            self._open(now, self._first_pause)

    def _note(self, now: float, success: bool) -> None:
        self._outcomes.append((now, success))
        self._failed += not success
        while self._outcomes[0][0] < now - WINDOW_SECONDS:
            self._failed -= not self._outcomes.popleft()[1]

    def undecided(self, now: float) -> None:
        """An attempt ended that says nothing either way: another may try at once."""
        if self.state is Circuit.HALF_OPEN:
            self._until = now

    def hear(self, state: Circuit, now: float) -> None:
        """What another process has found out about the node."""
        if state is Circuit.CLOSED:
            self.close()
        elif state is Circuit.OPEN and self.state is Circuit.CLOSED:
            self._open(now, self._first_pause)

    def returned(self, now: float) -> None:
        """The node was gone and is back, likely a new process: the old pause means nothing."""
        if self.state is not Circuit.CLOSED:
            self._open(now, self._first_pause)
            self._until = now

    def close(self) -> None:
        self.state = Circuit.CLOSED
        self._pause = self._first_pause
        self._outcomes.clear()
        self._failed = 0

    def _open(self, now: float, pause: float) -> None:
        self.state = Circuit.OPEN
        self._pause = pause
        self._until = now + pause
        self._outcomes.clear()
        self._failed = 0


class Readmission:
    """A node that has returned gets few streams at first, and more with each second and success."""

    __slots__ = ("_began", "_successes")

    def __init__(self) -> None:
        self._began: float | None = None
        self._successes = 0

    def begin(self, now: float) -> None:
        """It is back."""
        self._began = now
        self._successes = 0

    def succeeded(self) -> None:
        """An attempt got its first token."""
        self._successes += 1

    def share(self, now: float) -> float:
        """Its share of the streams against its usual one: 0.1 at first, 1 in the end."""
        if self._began is None:
            return 1.0
        grown = (now - self._began) / FULL_AFTER_SECONDS + self._successes / FULL_AFTER_SUCCESSES
        if grown >= 1.0:
            self._began = None
            return 1.0
        return FIRST_SHARE + (1.0 - FIRST_SHARE) * grown
