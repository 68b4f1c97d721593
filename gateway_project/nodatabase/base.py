"""The database engine in force when no database is configured.

It is PostgreSQL's in every way (so ``makemigrations``, ``check`` and type checkers work) except
that connecting explains what to do.
"""

from __future__ import annotations

from typing import NoReturn

from django.db.backends.postgresql import base
from django.db.utils import OperationalError

ADVICE = (
    "no database: either start the stack first (`make run`, or `manage.py serve`) with the same "
    "DATA_DIR, or set DATABASE_URL=postgresql://user:password@host:port/name"
)


class DatabaseWrapper(base.DatabaseWrapper):
    def get_new_connection(self, conn_params: object) -> NoReturn:
        raise OperationalError(ADVICE)
