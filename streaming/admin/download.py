"""Files handed out, however large."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from django.http import FileResponse

_BLOCK_BYTES = 256 * 1024


class Download(FileResponse):
    """A file, a block at a time under ASGI, too.

    Django's own iterates synchronously, which its ASGI handler does to the end before it sends
    anything: the whole file in memory.
    """

    async def __aiter__(self) -> AsyncIterator[bytes]:
        file = self.file_to_stream
        assert file is not None, "made of a file"
        while block := await asyncio.to_thread(file.read, _BLOCK_BYTES):
            yield block
