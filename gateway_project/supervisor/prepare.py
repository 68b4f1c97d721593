"""What must be done once before the first process uses the database. Run by ``serve``:

python -m gateway_project.supervisor.prepare http://127.0.0.1:8000
"""

from __future__ import annotations

import io
import sys

import django
from django.core.management import call_command
from django.core.management.base import SystemCheckError


def prepare(url: str) -> int:
    """The exit code. ``url`` is where the gateway will be reached; the demo prints it."""
    django.setup()
    from django.conf import settings

    try:
        call_command("check", databases=["default"], stdout=io.StringIO())  # "no issues" is no news
    except SystemCheckError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    call_command("migrate", interactive=False, verbosity=0)
    if settings.STREAMING.demo:
        from gateway_project.supervisor.demo import prepare_demo

        prepare_demo(url)
    return 0


if __name__ == "__main__":
    sys.exit(prepare(sys.argv[1]))
