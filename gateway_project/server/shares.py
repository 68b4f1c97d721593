"""How many connections each process has that accepts from the same socket.

The kernel gives a connection to whichever process wakes first, which may be the same one most of the
time. So each lets the others go first while one of them has fewer.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile

COUNT_BYTES = 4
NOT_THERE = 2**32 - 1
"""The count of a process that takes no connections: nobody waits for it."""
MORE, MORE_SHARE = 2, 0.05
"""By how much, and by what share, one may be ahead of another."""


def shared_memory(processes: int) -> int:
    """The descriptor of a file without a name, for the processes to inherit."""
    with tempfile.TemporaryFile() as file:
        file.write(NOT_THERE.to_bytes(COUNT_BYTES, sys.byteorder) * processes)
        file.flush()
        return os.dup(file.fileno())


class Shares:
    """One number for each process, in memory that all of them map; ``place`` is ours, from 0."""

    def __init__(self, descriptor: int, place: int) -> None:
        self._counts = memoryview(mmap.mmap(descriptor, 0)).cast("I")
        self._place = place
        self._counts[place] = 0

    def __repr__(self) -> str:
        return f"<Shares {self._counts.tolist()}, ours is {self._place}>"

    def opened(self) -> None:
        """A connection more."""
        if self._counts[self._place] != NOT_THERE:
            self._counts[self._place] += 1

    def closed(self) -> None:
        """A connection less."""
        if self._counts[self._place] not in (0, NOT_THERE):
            self._counts[self._place] -= 1

    def leave(self) -> None:
        """We take no more of them."""
        self._counts[self._place] = NOT_THERE

    @property
    def is_ahead(self) -> bool:
        """Whether another process has so many fewer that it is to take the next."""
        ours = self._counts[self._place]
        return ours > min(self._counts) * (1 + MORE_SHARE) + MORE
