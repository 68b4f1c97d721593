"""``python -m bench.generator``: takes a job as JSON on stdin, answers with what each stream saw."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time
from dataclasses import asdict
from urllib.parse import urlsplit

from bench.load import Job, LoadSeen, Reader
from bench.socket_reader import SocketReader


async def _run(job: Job) -> LoadSeen:
    loop = asyncio.get_running_loop()
    parts = urlsplit(job.url)
    offset = time.time() - time.monotonic()
    kind = SocketReader if job.websocket else Reader
    readers = []
    first = loop.time()
    for index in range(job.streams):
        wait = first + index / job.rate - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        reader = kind(job, index, offset)
        readers.append(reader)
        await loop.create_connection(lambda reader=reader: reader, parts.hostname, parts.port)
    await asyncio.wait([reader.done for reader in readers], timeout=job.timeout)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return LoadSeen(
        streams=[reader.conclude() for reader in readers],
        cpu_seconds=usage.ru_utime + usage.ru_stime,
    )


def main() -> None:
    job = Job(**json.loads(sys.stdin.readline()))
    print("STARTED", flush=True)
    gc.disable()
    json.dump(asdict(asyncio.run(_run(job))), sys.stdout)


if __name__ == "__main__":
    main()
