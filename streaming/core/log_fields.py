"""Whose lines a task writes into the log: of which request, session, attempt and node.

Bound once per request, session and attempt, never per token; the formatter adds them to every line.
Tasks that are begun by a task write on in its name; what serves everybody begins in its own (``nobody``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context

Value = str | int

_fields: ContextVar[dict[str, Value]] = ContextVar("log_fields")


def fields() -> Mapping[str, Value]:
    """Those of the running task."""
    return _fields.get({})


def begin(**values: Value) -> None:
    """From here on this task, and those that it begins, write in this name and in no other."""
    _fields.set(values)


def add(**values: Value) -> None:
    """Something more is known. The task that this one was begun by writes it from now on, too."""
    bound = _fields.get(None)
    if bound is None:
        _fields.set(values)
    else:
        bound.update(values)


@contextmanager
def within(**values: Value) -> Iterator[None]:
    """For the lines of a block."""
    token = _fields.set({**fields(), **values})
    try:
        yield
    finally:
        _fields.reset(token)


def nobody() -> Context:
    """The context for a task that is begun on an occasion, and does not work for that alone."""
    context = copy_context()
    context.run(_fields.set, {})
    return context
