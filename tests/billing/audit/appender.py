"""A process that appends to the audit log: ``python -m tests.billing.audit.appender NAME TIMES``.

Waits for a line on its standard input. Every third transaction comes to nothing; the others append
one link, or three.
"""

from __future__ import annotations

import sys

import django
from django.db import connection, transaction


def main(name: str, times: int) -> None:
    django.setup()
    from billing.services import audit

    connection.ensure_connection()
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(times):
        with transaction.atomic():
            number = 1 if n % 2 else 3
            audit.append_many(
                [
                    audit.draft("test.append", actor=f"system:{name}", subject=f"{name}:{n}:{i}")
                    for i in range(number)
                ]
            )
            transaction.set_rollback(n % 3 == 2)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
