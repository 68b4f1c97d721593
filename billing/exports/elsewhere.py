"""Making an export in a process of its own, while streams and sweeps go on."""

from __future__ import annotations

import subprocess
import sys
import threading

from django.conf import settings

from billing.models import Export


def start(export: Export) -> None:
    """Begin to make an export that was requested, and return at once.

    A gateway's processor belongs to its streams, and the worker does one thing after the other. The
    process outlives us; when it is killed, the next export notes that (``run.make``).
    """
    process = subprocess.Popen(
        [sys.executable, "manage.py", "make_export", "--nice", str(export.pk)],
        cwd=settings.BASE_DIR,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    # Somebody has to take note of its end, or it stays as a zombie.
    threading.Thread(target=process.wait, name="export", daemon=True).start()
