"""Sessions that one cause hit in one moment are one incident."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from streaming.models import GatewayInstance, Incident, InferenceNode
from streaming.services.explaining import explain_due
from streaming.services.incident_groups import KIND, close_quiet
from tests.explaining.course import Course, lost, recovered

pytestmark = pytest.mark.django_db


@pytest.fixture
def night() -> datetime:
    return timezone.now() - timedelta(hours=9)


def explain_everything() -> None:
    while explain_due()["explained"]:
        pass


def of(kind: str = KIND) -> list[Incident]:
    return list(Incident.objects.filter(kind=kind).order_by("opened_at", "pk"))


def test_one_cause_on_one_node_in_one_moment(night):
    node = InferenceNode.objects.create(name="gpu-3", dialect="vllm", base_url="http://gpu-3:8000")
    hit = [lost(began=night + timedelta(seconds=20 * n)) for n in range(4)]
    later = lost(began=night + timedelta(seconds=120))
    explain_everything()
    first, second = of()
    assert {course.row.incident for course in hit} == {first}
    assert later.row.incident == second
    assert (first.cause, first.subject, first.node) == ("engine_frozen", "gpu-3", node)
    assert first.opened_at == hit[0].row.interrupted_at
    assert first.last_at == hit[-1].row.interrupted_at
    assert (first.closed_at is not None, second.closed_at) == (True, None)
    assert close_quiet() == 1
    assert all(incident.closed_at for incident in of())


def test_other_nodes_and_other_causes_are_others(night):
    a, b = lost(began=night), recovered(began=night, cause="engine_crash")
    explain_everything()
    assert a.row.incident != b.row.incident
    assert {incident.cause for incident in of()} == {"engine_frozen", "engine_crash"}


def test_a_partition_is_one_whatever_the_node(night):
    courses = []
    for node in ("gpu-1", "gpu-2"):
        course = Course(began=night)
        course.attempt(node)
        course.tokens(5)
        course.fails("stalled")
        course.is_attributed("network_partition")
        courses.append(course)
    explain_everything()
    (incident,) = of()
    assert {course.row.incident for course in courses} == {incident}
    assert (incident.subject, incident.node) == ("the network", None)
    assert incident.data["nodes"] == ["gpu-1", "gpu-2"]


def test_a_gateway_that_died_under_sessions_of_several_nodes(night):
    gateway = GatewayInstance.objects.create(
        hostname="here", pid=1, started_at=night, heartbeat_at=night
    )
    courses = []
    for node in ("gpu-1", "gpu-2"):
        course = Course(began=night)
        course.attempt(node)
        course.tokens(5)
        course.wait(4)
        course.ends("gateway_crash", cause="gateway_crash", evidence={"gateway": gateway.pk})
        course.change(state="recovering", owner_id=None)
        course.event("taken_over", reason="gateway_crash", **{"from": gateway.pk, "to": 9})
        courses.append(course)
    explain_everything()
    (incident,) = of()
    assert {course.row.incident for course in courses} == {incident}
    assert (incident.cause, incident.subject) == ("gateway_crash", f"gateway {gateway.pk}")
    assert incident.data["gateway"] == str(gateway)


def test_readers_make_none_and_a_broken_connection_only_with_others(night):
    course = Course(began=night)
    course.joined()
    course.attempt("gpu-1")
    course.tokens(5)
    course.left("timed_out")
    alone = recovered(began=night, cause="network_reset")
    explain_everything()
    assert of() == []
    other = recovered(began=night + timedelta(seconds=10), cause="network_reset")
    explain_everything()
    (incident,) = of()
    assert alone.row.incident == other.row.incident == incident
    assert course.row.incident is None


def test_sessions_move_when_their_cause_is_known_and_emptied_incidents_go(
    night, django_capture_on_commit_callbacks
):
    course = recovered(began=night, cause="engine_crash")
    explain_everything()
    before = course.row.incident
    assert before is not None
    course.is_attributed("engine_oom", 1)
    with django_capture_on_commit_callbacks(execute=True):
        explain_everything()
    assert of() == [course.row.incident]
    assert course.row.incident.cause == "engine_oom"


def test_an_incident_with_a_history_stays_though_it_is_empty(
    night, django_capture_on_commit_callbacks
):
    course = recovered(began=night, cause="engine_crash")
    explain_everything()
    before = course.row.incident
    Incident.objects.filter(pk=before.pk).update(data={**before.data, "credited": True})
    course.is_attributed("engine_oom", 1)
    with django_capture_on_commit_callbacks(execute=True):
        explain_everything()
    assert len(of()) == 2


def test_what_is_not_attributed_yet_waits_with_its_incident():
    course = recovered(began=timezone.now() - timedelta(seconds=2), cause="")
    explain_everything()
    assert (course.row.outcome, course.row.incident) == ("recovered", None)
    course.is_attributed("engine_crash", 1)
    explain_everything()
    assert course.row.incident is not None


@pytest.mark.django_db(transaction=True)
def test_two_workers_open_one(night):
    courses = [lost(began=night + timedelta(seconds=n)) for n in range(12)]

    def work() -> None:
        try:
            for _ in courses:
                explain_due(limit=3)
        finally:
            connection.close()

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    explain_everything()
    (incident,) = of()
    assert {course.row.incident for course in courses} == {incident}
    assert incident.last_at == courses[-1].row.interrupted_at
