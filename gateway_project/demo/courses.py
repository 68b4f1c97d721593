"""What becomes of sessions: undisturbed, left by their readers, or interrupted."""

from __future__ import annotations

import random
from collections.abc import Callable

from gateway_project.demo.course import GRACE_SECONDS, RESUME_SECONDS, Course
from gateway_project.demo.faults import NO_SEAM, Fault
from streaming.core.failures import Cause
from streaming.core.seams import SeamGrade
from streaming.core.state import SessionState
from streaming.errors import (
    AnswerTimeout,
    EngineRejected,
    FailoverExhausted,
    GatewayError,
    NoHealthyNode,
    SeamRefused,
)

MOST_FAILED = 3
"""Attempts in a row, after which nobody tries again."""


def undisturbed(course: Course) -> None:
    course.flow(course.flushes)
    course.finish()


def stopped(course: Course) -> None:
    """Its reader has read enough."""
    course.flow(_midst(course))
    course.now += 0.05
    course.end(SessionState.STOPPED, "client_stop")


def left(course: Course) -> None:
    """Its reader hangs up, and is not seen again."""
    course.flow(_midst(course))
    course.leave(course.chance.choices(("closed", "reset", "timed_out"), (12, 7, 1))[0])
    if _goes_on(course, GRACE_SECONDS):
        return
    course.suspend("client_gone")
    _abandoned(course)


def came_back(course: Course) -> None:
    """Its reader was in a tunnel: a reload within the grace period, or a resumption after it."""
    course.flow(_midst(course))
    course.leave(course.chance.choice(("reset", "timed_out", "closed")))
    absence = course.chance.choice((1.2, 2.4, 9.0, 47.0, 310.0)) * course.chance.uniform(0.7, 1.3)
    has = course.taken
    if absence > GRACE_SECONDS:
        if _goes_on(course, GRACE_SECONDS):
            return
        course.suspend("client_gone")
        course.now += absence - GRACE_SECONDS
        course.take_over("resumed")
        course.read(has)
        course.attempt(
            course.other_node(),
            "resumption",
            SeamGrade.EXACT.value,
            course.chance.uniform(0.1, 0.5),
        )
    else:
        if _goes_on(course, absence):
            return
        course.read(has)
    undisturbed(course)


def moved(course: Course) -> None:
    """Its node is drained for maintenance."""
    course.flow(_midst(course))
    course.move(course.other_node(course.tries[-1].node))
    undisturbed(course)


def rejected(course: Course) -> None:
    """The engine refuses the request itself."""
    course.now += 0.02
    course.end_attempt("rejected", detail="HTTP 400: max_tokens is too large")
    error = EngineRejected("The engine refused the request: max_tokens is too large")
    course.end(SessionState.FAILED, "rejected_by_engine", error)


def too_long(course: Course) -> None:
    """It takes longer than an answer may."""
    course.pace = max(course.pace, 600 / course.answer.tokens)
    course.flow(max(course.flushes - 1, 1))
    course.end(
        SessionState.FAILED, "answer_timeout", AnswerTimeout("The answer took longer than 600 s.")
    )


def failed_over(course: Course, fault: Fault, siblings: int = 0) -> None:
    """An engine fails under it, and others go on, or cannot."""
    chance = course.chance
    at = course.created_at
    course.flow(_midst(course) if fault.begun else 0)
    course.happens_at(at + chance.uniform(0.0, 0.03))
    if fault.seen is Cause.STALLED and chance.random() < 0.6 and course.done < course.flushes:
        course.hedge(fault, course.other_node(course.tries[-1].node), siblings)
        undisturbed(course)
        return
    course.fail(fault, siblings)
    former = [course.tries[-1].node]
    while chance.random() < 0.12:
        node = course.other_node(former[-1])
        if len(former) >= MOST_FAILED:
            _broken_off(course, FailoverExhausted(f"{len(former)} attempts in a row failed."))
            return
        course.attempt(node, "failover", SeamGrade.EXACT.value if course.done else "")
        course.fail(fault)
        former.append(node)
    if chance.random() < 0.04:
        course.now += 30.0
        _broken_off(course, NoHealthyNode("No node could take it within 30 s."))
        return
    grade = chance.choices(tuple(SeamGrade), (86, 9, 4, 1))[0]
    node = course.other_node(former[-1])
    if not course.done:
        course.attempt(node, "failover", "", course.first_wait)
    elif grade is SeamGrade.REFUSED:
        course.attempt(node, "failover", SeamGrade.REGENERATED.value)
        course.fail(NO_SEAM)
        refused = SeamRefused(f"The answer cannot be continued unchanged: {NO_SEAM.said}")
        course.end(SessionState.FAILED, "seam_refused", refused)
        return
    else:
        course.attempt(node, "failover", grade.value, _recovery(course, grade, siblings))
    undisturbed(course)


def outlived_its_gateway(course: Course) -> None:
    """The gateway process dies; its reader comes back to another one, or does not."""
    at = course.created_at
    course.flow(_midst(course))
    course.happens_at(at)
    has = course.taken
    course.is_read = False
    course.now += course.chance.uniform(1.5, 4.0)
    if course.chance.random() < 0.12:
        course.take_over("gateway_crash")
        course.suspend("gateway_crash")
        _abandoned(course)
        return
    course.take_over("gateway_crash")
    course.read(has)
    course.attempt(
        course.tries[-1].node, "resumption", SeamGrade.EXACT.value, course.chance.uniform(0.05, 0.3)
    )
    undisturbed(course)


def outlived_a_deployment(course: Course) -> None:
    """The gateway process is shut down, and hands over what it cannot finish."""
    at = course.created_at
    course.flow(_midst(course))
    course.happens_at(at)
    has = course.taken
    course.leave("sent_away")
    course.suspend("gateway_shutdown")
    course.now += course.chance.uniform(0.4, 3.0)
    course.take_over("resumed")
    course.read(has)
    course.attempt(
        course.tries[-1].node, "resumption", SeamGrade.EXACT.value, course.chance.uniform(0.05, 0.3)
    )
    undisturbed(course)


OF_GATEWAYS: dict[str, Callable[[Course], None]] = {
    "crash": outlived_its_gateway,
    "shutdown": outlived_a_deployment,
}
USUAL: tuple[tuple[Callable[[Course], None], float], ...] = (
    (undisturbed, 88.0),
    (stopped, 3.0),
    (left, 5.0),
    (came_back, 2.6),
    (moved, 1.0),
    (rejected, 0.3),
    (too_long, 0.1),
)


def usual(chance: random.Random) -> Callable[[Course], None]:
    """What becomes of a session that no fault comes over."""
    courses, weights = zip(*USUAL, strict=True)
    return chance.choices(courses, weights)[0]


def _midst(course: Course) -> int:
    """A flush in the midst of the answer: at least one is before it, and if possible one behind."""
    return course.chance.randint(1, max(course.flushes - 1, 1))


def _goes_on(course: Course, seconds: float) -> bool:
    """Nobody reads for that long; whether the answer is whole by then."""
    until = course.now + seconds
    while course.done < course.flushes and course.now < until:
        course.flow(course.done + 1)
    if course.done < course.flushes:
        return False
    course.finish()
    return True


def _abandoned(course: Course) -> None:
    """Nobody comes back; a session of the last minutes may still be waiting for it."""
    if course.now + RESUME_SECONDS > course.world.ends_at.timestamp():
        return
    course.now += RESUME_SECONDS + course.chance.uniform(0.5, 9.0)
    course.take_over("abandoned")
    course.end(SessionState.ABANDONED, "abandoned")


def _broken_off(course: Course, error: GatewayError) -> None:
    """No engine can go on, its reader is told so, and does not come back."""
    course.suspend("", error)
    course.leave("told_error")
    if course.now + RESUME_SECONDS > course.world.ends_at.timestamp():
        return
    course.now += RESUME_SECONDS + course.chance.uniform(0.5, 9.0)
    cause, evidence = course.cause, course.evidence
    course.take_over("abandoned")
    course.cause, course.evidence = cause, evidence
    course.end(SessionState.ABANDONED, "", error)


def _recovery(course: Course, grade: SeamGrade, siblings: int) -> float:
    """Seconds until the next token: many at once wait for each other."""
    base = min(course.chance.lognormvariate(-2.9, 0.6), 2.0)
    if grade is SeamGrade.REGENERATED:
        base += course.tokens * course.pace * 0.7
    return base * (1 + min(siblings, 60) / 12)
