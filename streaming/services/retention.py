"""The data of one end user: all of it handed out, or forgotten, when they ask.

Nothing here keeps the end user's own id: the audit log says that somebody's data was exported or
erased, for which tenant and how many sessions, and who did it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.db import transaction
from django.db.models import Model, QuerySet
from django.utils import timezone

from streaming.models import (
    Attempt,
    EmbedToken,
    IdempotencyKey,
    SessionEvent,
    SessionReview,
    StreamSession,
    Tenant,
    TokenCheckpoint,
)
from streaming.ports import ports
from streaming.services import audit, session_actions
from streaming.services.purge import forget, purge_session
from streaming.services.reduction import reduce
from streaming.services.refused import Refused

Row = TypeVar("Row", bound=Model)

__all__ = ["ERASED", "erase_end_user", "export_end_user", "purge_session", "sessions_of"]

ERASED = "erased-"
"""How names begin that stand for end users who were erased."""
SESSIONS = 100
"""That are in memory at once, without their content."""
ROWS = 200
STOP_SECONDS = 20.0
LOOK_SECONDS = 0.1

_OF_SESSION = (
    "reference", "request_id", "protocol", "model", "model_requested", "state", "finish_reason",
    "error_code", "cause", "prompt_tokens", "completion_tokens", "created_at", "first_token_at",
    "suspended_at", "ended_at", "purged_at", "outcome",
)  # fmt: skip
_OF_ATTEMPT = (
    "number", "started_at", "ended_at", "first_seq", "last_seq", "end_reason", "end_detail",
    "cause",
)  # fmt: skip


def sessions_of(tenant_id: int, end_user: str) -> QuerySet[StreamSession]:
    """All sessions of an end user. Raises ``Refused`` for an empty name: nobody's are not one's."""
    if not end_user:
        raise Refused("Say whose data it is.")
    return StreamSession.objects.filter(tenant=tenant_id, end_user=end_user)


def export_end_user(tenant_id: int, end_user: str, *, by: str) -> Iterator[dict[str, Any]]:
    """All that is stored of an end user, piece by piece, as JSON has it: ``kind`` says what it is.

    A session comes with its request, its answer (in pieces), its attempts, events, keys, review and
    usage. The last piece counts the sessions. It is audited before the first. Raises ``Refused``.
    """
    found = sessions_of(tenant_id, end_user)
    _announce("end_user.export", tenant_id, by, sessions=found.count())
    return _pieces(found, tenant_id, end_user)


def erase_end_user(tenant_id: int, end_user: str, *, by: str) -> int:
    """Forget an end user: of their sessions only figures stay; how many sessions they were.

    What lives is stopped first. In place of their name all get another that nobody can lead back.
    Sessions that they begin afterwards have nothing to do with it. Calling it again erases what is
    left. Raises ``Refused`` when a session does not end; nothing is erased then.
    """
    began = timezone.now()
    found = sessions_of(tenant_id, end_user).filter(created_at__lte=began)
    _stop(found, by)
    pseudonym = f"{ERASED}{secrets.token_hex(8)}"
    erased = 0
    while count := _erase_some(found, tenant_id, pseudonym, by):
        erased += count
    IdempotencyKey.objects.filter(
        tenant=tenant_id, end_user=end_user, created_at__lte=began
    ).delete()
    EmbedToken.objects.filter(tenant=tenant_id, end_user=end_user, created_at__lte=began).delete()
    if not erased:
        _announce("end_user.erase", tenant_id, by, sessions=0)
    return erased


def _stop(found: QuerySet[StreamSession], by: str) -> None:
    """End what lives, and wait until it has ended."""
    live = found.filter(ended_at__isnull=True)
    for session_id in live.values_list("pk", flat=True):
        with suppress(Refused):  # it has ended, or was told to
            session_actions.stop(session_id, by=by)
    deadline = time.monotonic() + STOP_SECONDS
    while count := live.count():
        if time.monotonic() > deadline:
            raise Refused(f"{count} of their sessions have not ended yet: try again in a minute.")
        time.sleep(LOOK_SECONDS)


@transaction.atomic
def _erase_some(found: QuerySet[StreamSession], tenant_id: int, pseudonym: str, by: str) -> int:
    some = found.select_for_update(of=("self",)).order_by("pk").values_list("pk", "purged_at")
    taken = list(some[:SESSIONS])
    if not taken:
        return 0
    ids = [pk for pk, _ in taken]
    if kept := [pk for pk, purged_at in taken if purged_at is None]:
        forget(kept)
    reduce(ids, end_user=pseudonym)
    _announce("end_user.erase", tenant_id, by, sessions=len(ids), pseudonym=pseudonym)
    return len(ids)


def _announce(action: str, tenant_id: int, by: str, **data: Any) -> None:
    tenant = Tenant.objects.filter(pk=tenant_id).values_list("name", flat=True).first()
    if tenant is None:
        raise Refused("There is no such tenant.")
    audit.announce(action, actor=by, subject=f"tenant:{tenant}", tenant_id=tenant_id, **data)


def _pieces(
    found: QuerySet[StreamSession], tenant_id: int, end_user: str
) -> Iterator[dict[str, Any]]:
    tenant = Tenant.objects.get(pk=tenant_id)
    yield _piece("export", tenant=tenant.name, end_user=end_user, at=timezone.now())
    count = 0
    for page in _paged(found.defer("request", "prompt_token_ids").order_by("pk"), "pk", SESSIONS):
        usage = ports.usage_of([session.pk for session in page])
        for session in page:
            count += 1
            yield from _of_one(session)
            if session.pk in usage:
                yield _piece("usage", session=session.pk, **usage[session.pk])
    yield _piece("end", sessions=count)


def _of_one(session: StreamSession) -> Iterator[dict[str, Any]]:
    of = {"session": session.pk}
    yield _piece("session", id=session.pk, **{name: getattr(session, name) for name in _OF_SESSION})
    body = StreamSession.objects.values_list("request", flat=True).get(pk=session.pk)
    if body:
        yield _piece("request", **of, body=bytes(body).decode("utf-8", "replace"))
    log = TokenCheckpoint.objects.of(session).order_by("first_seq")
    for page in _paged(log, "first_seq", ROWS):
        text = b"".join(bytes(row.text) for row in page)
        if text:
            yield _piece(
                "answer", **of, first_seq=page[0].first_seq, text=text.decode("utf-8", "replace")
            )
    for attempt in Attempt.objects.filter(session=session).order_by("number"):
        told = {name: getattr(attempt, name) for name in _OF_ATTEMPT}
        yield _piece("attempt", **of, why=attempt.kind, **told)
    events = SessionEvent.objects.filter(session=session).order_by("pk")
    for events_page in _paged(events, "pk", ROWS):
        for event in events_page:
            yield _piece(
                "event", **of, at=event.at, what=event.kind, seq=event.seq, data=event.data
            )
    for key in IdempotencyKey.objects.filter(session_id=session.pk):
        yield _piece("idempotency_key", **of, key=key.key, at=key.created_at)
    for review in SessionReview.objects.filter(session=session):
        yield _piece("review", **of, note=review.note, ticket=review.ticket)


def _paged(found: QuerySet[Row], column: str, size: int) -> Iterator[Sequence[Row]]:
    """All rows in the order of ``column``, which is unique among them."""
    page = list(found[:size])
    while page:
        yield page
        page = list(found.filter(**{f"{column}__gt": getattr(page[-1], column)})[:size])


def _piece(kind: str, **values: Any) -> dict[str, Any]:
    return {"kind": kind, **{name: _plain(value) for name, value in values.items()}}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case UUID():
            return str(value)
    return value
