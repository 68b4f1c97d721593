"""Looking into sessions: who does, what they found, and that it is done.

Whether a session waits for somebody is ``StreamSession.review``; the rest is in ``SessionReview``. The
session's row is locked first, then its review's: two people at once come one after the other, and the
second is told what the first has done. Notes may be personal, so the audit log has none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from streaming.core.outcome import Review
from streaming.models import Incident, OutboxMessage, SessionReview, StreamSession
from streaming.services import audit
from streaming.services.refused import Refused

PERMISSION = "streaming.review_session"
NOTE_LENGTH = 4000
TICKET_LENGTH = 64
BATCH = 200

_WAITING = (Review.NEEDED.value, Review.ASSIGNED.value)
_COLUMNS = ("pk", "reference", "tenant_id", "review")


@transaction.atomic
def assign(session_id: UUID, *, user: User | None, by: str) -> SessionReview:
    """Have ``user`` look into it, instead of whoever had it; None: nobody has it any more.

    Raises ``Refused``: it was reviewed, or the user may not look into sessions, or has it already.
    """
    session, review = _locked(session_id)
    return _assign(session, review, user, by)


@transaction.atomic
def take(session_id: UUID, *, user: User, by: str) -> SessionReview:
    """``assign`` for oneself: it is never taken from somebody else. Raises ``Refused``."""
    session, review = _locked(session_id)
    if review.assignee is not None and review.assignee != user:
        raise Refused(f"{session.reference} is looked into by {review.assignee} already.")
    return _assign(session, review, user, by)


@transaction.atomic
def mark_reviewed(session_id: UUID, *, note: str, ticket: str, by: str) -> SessionReview:
    """Somebody has looked into it, and this is what they found. Raises ``Refused``."""
    note, ticket = _said(note, ticket)
    session, review = _locked(session_id)
    if session.review == Review.REVIEWED.value:
        raise Refused(
            f"{session.reference} was reviewed by {review.reviewed_by}: reopen it to do so again."
        )
    review.note, review.ticket = note, ticket
    review.reviewed_by, review.reviewed_at = by, timezone.now()
    _store(session, review, Review.REVIEWED)
    _announcement("session.review", session, by, ticket=ticket, noted=bool(note)).save()
    return review


@transaction.atomic
def reopen(session_id: UUID, *, by: str) -> SessionReview:
    """It has to be looked into again; note and ticket stay. Raises ``Refused``: it was not reviewed."""
    session, review = _locked(session_id)
    if session.review != Review.REVIEWED.value:
        raise Refused(f"{session.reference} was not reviewed.")
    was = review.reviewed_by
    review.reviewed_by, review.reviewed_at = "", None
    _store(session, review, Review.ASSIGNED if review.assignee_id else Review.NEEDED)
    _announcement("session.reopen", session, by, reviewed_by=was).save()
    return review


def assign_all(
    sessions: QuerySet[StreamSession], incident: Incident, *, user: User, by: str
) -> int:
    """Have ``user`` look into those of an incident's sessions that nobody looks into; how many.

    ``sessions``: those of the incident that the caller may see. In short transactions, so when it is
    broken off, doing it again does the rest. Raises ``Refused``.
    """
    _check_may_review(user)

    def change(batch: Sequence[StreamSession]) -> None:
        reviews = [
            SessionReview(session=session, assignee=user, changed_at=timezone.now())
            for session in batch
        ]
        _store_all(reviews, Review.ASSIGNED, ["assignee", "changed_at"])
        _announce_all("session.assign", batch, by, was="nobody", now=user.get_username())

    done = _in_batches(sessions, [Review.NEEDED.value], change)
    return _tell(incident, "incident.assign", by, done, assignee=user.get_username())


def review_all(
    sessions: QuerySet[StreamSession], incident: Incident, *, note: str, ticket: str, by: str
) -> int:
    """Mark those of an incident's sessions reviewed that wait for it; how many. As ``assign_all``."""
    note, ticket = _said(note, ticket)

    def change(batch: Sequence[StreamSession]) -> None:
        now = timezone.now()
        reviews = [
            SessionReview(
                session=session, note=note, ticket=ticket, reviewed_by=by, reviewed_at=now,
                changed_at=now,
            )
            for session in batch
        ]  # fmt: skip
        columns = ["note", "ticket", "reviewed_by", "reviewed_at", "changed_at"]
        _store_all(reviews, Review.REVIEWED, columns)
        _announce_all("session.review", batch, by, ticket=ticket, noted=bool(note))

    done = _in_batches(sessions, _WAITING, change)
    return _tell(incident, "incident.review", by, done, ticket=ticket)


# --- one session ------------------------------------------------------------------------------------


def _locked(session_id: UUID) -> tuple[StreamSession, SessionReview]:
    sessions = StreamSession.objects.select_for_update(no_key=True).only(*_COLUMNS)
    session = sessions.filter(pk=session_id).first()
    if session is None:
        raise Refused("There is no such session.")
    reviews = SessionReview.objects.select_for_update(of=("self",)).select_related("assignee")
    return session, reviews.filter(pk=session_id).first() or SessionReview(session=session)


def _assign(
    session: StreamSession, review: SessionReview, user: User | None, by: str
) -> SessionReview:
    if session.review == Review.REVIEWED.value:
        raise Refused(f"{session.reference} was reviewed: reopen it first.")
    if user is not None:
        _check_may_review(user)
    was = review.assignee
    if user == was:
        raise Refused(
            f"Nobody looks into {session.reference}."
            if user is None
            else f"{session.reference} is looked into by {user} already."
        )
    review.assignee = user
    _store(session, review, Review.ASSIGNED if user else Review.NEEDED)
    _announcement("session.assign", session, by, was=_name(was), now=_name(user)).save()
    return review


def _store(session: StreamSession, review: SessionReview, state: Review) -> None:
    review.changed_at = timezone.now()
    review.save()
    StreamSession.objects.filter(pk=session.pk).update(review=state.value)


def _check_may_review(user: User) -> None:
    if not (user.is_active and user.is_staff and user.has_perm(PERMISSION)):
        raise Refused(f"{user} may not look into sessions.")


def _said(note: str, ticket: str) -> tuple[str, str]:
    note, ticket = note.strip(), ticket.strip()
    if not note and not ticket:
        raise Refused("Say what was found, or in which ticket it is.")
    if len(note) > NOTE_LENGTH or len(ticket) > TICKET_LENGTH:
        raise Refused(
            f"A note has {NOTE_LENGTH} characters at most, a ticket’s number {TICKET_LENGTH}."
        )
    return note, ticket


def _name(user: User | None) -> str:
    return "nobody" if user is None else user.get_username()


def _announcement(action: str, session: StreamSession, by: str, **data: Any) -> OutboxMessage:
    return audit.announcement(
        action,
        actor=by,
        subject=f"session:{session.pk}",
        tenant_id=session.tenant_id,
        session_id=session.pk,
        reference=session.reference,
        **data,
    )


# --- all of an incident -----------------------------------------------------------------------------


def _in_batches(
    sessions: QuerySet[StreamSession],
    states: Collection[str],
    change: Callable[[Sequence[StreamSession]], None],
) -> int:
    """``change`` those in one of ``states``, a transaction each batch; how many.

    Gateways change several sessions at once, too, in another order: a row that is held is passed over,
    and done alone in the end, when there is nothing that could be waited for in return.
    """
    waiting = sessions.filter(review__in=states).only(*_COLUMNS).order_by("pk")
    done, last = 0, UUID(int=0)
    while True:
        with transaction.atomic():
            rest = waiting.filter(pk__gt=last)
            free = rest.select_for_update(no_key=True, skip_locked=True, of=("self",))
            batch = list(free[:BATCH])
            if not batch:
                break
            change(batch)
        done, last = done + len(batch), batch[-1].pk
    for pk in list(waiting.values_list("pk", flat=True)):
        with transaction.atomic():
            alone = waiting.filter(pk=pk).select_for_update(no_key=True, of=("self",))
            if batch := list(alone):
                change(batch)
                done += 1
    return done


def _store_all(reviews: list[SessionReview], state: Review, columns: list[str]) -> None:
    SessionReview.objects.bulk_create(
        reviews, update_conflicts=True, unique_fields=["session"], update_fields=columns
    )
    ids = [review.session_id for review in reviews]
    StreamSession.objects.filter(pk__in=ids).update(review=state.value)


def _announce_all(action: str, batch: Sequence[StreamSession], by: str, **data: Any) -> None:
    OutboxMessage.objects.bulk_create(
        _announcement(action, session, by, **data) for session in batch
    )


def _tell(incident: Incident, action: str, by: str, done: int, **data: Any) -> int:
    if done:
        audit.announce(action, actor=by, subject=f"incident:{incident.pk}", sessions=done, **data)
    return done
