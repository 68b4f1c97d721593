"""The list of interrupted sessions, the front page, and how sessions are found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from streaming.admin import finance
from streaming.admin.finance import Billed, NoFinance
from streaming.models import ChangedSession, IdempotencyKey, SessionReview, TenantMember
from streaming.services.explaining import explain_due
from tests.admin.rows import SCRIPT
from tests.explaining.course import Course, lost, normal, recovered

pytestmark = pytest.mark.django_db

LIST = "admin:streaming_interruptedsession_changelist"
SESSIONS = "admin:streaming_streamsession_changelist"


def left(**columns) -> Course:
    course = Course(**columns)
    course.joined()
    course.attempt("gpu-1")
    course.tokens(5)
    course.left("closed")
    course.finishes()
    return course


def explained(*courses: Course) -> tuple[Course, ...]:
    while explain_due()["explained"]:
        pass
    return courses


def shown(client, query: str = "", page: str = LIST) -> set[str]:
    """The references in a list."""
    answer = client.get(f"{reverse(page)}?{query}")
    assert answer.status_code == 200, answer.headers.get("Location")
    return {session.reference for session in answer.context["cl"].result_list}


def test_the_columns(admin_client):
    (course,) = explained(recovered(end_user=SCRIPT))
    html = admin_client.get(reverse(LIST)).content.decode()
    for words in (
        course.row.reference, "acme", "Engine ran out of memory", "(gpu-3)", "recovered", "exact",
        "40 ms", ">20<", reverse("admin:streaming_streamsession_change", args=[course.id]),
        reverse("admin:streaming_incident_change", args=[course.row.incident_id]),
    ):  # fmt: skip
        assert words in html, words
    assert SCRIPT not in html


class Till(NoFinance):
    """Bills 17 tokens of every session."""

    def __init__(self) -> None:
        self.asked: list[set[UUID]] = []

    def billed(self, session_ids: Iterable[UUID]) -> dict[UUID, Billed]:
        self.asked.append(set(session_ids))
        return {pk: Billed(17, Decimal("0.1"), "EUR") for pk in self.asked[-1]}


@pytest.fixture
def till() -> Iterator[Till]:
    before = finance.finance()
    till = Till()
    finance.connect(till)
    yield till
    finance.connect(before)


def test_billed_tokens_are_asked_for_once(admin_client, till):
    courses = explained(lost(), recovered())
    html = admin_client.get(reverse(LIST)).content.decode()
    assert html.count(">17</span>") == 2
    assert till.asked == [{course.id for course in courses}]


def test_what_can_be_done_to_those_chosen(admin_client):
    (course,) = explained(lost())
    html = admin_client.get(reverse(LIST)).content.decode()
    for action in ("stop_selected", "review_selected", "export_selected"):
        assert f'<option value="{action}">' in html
    chosen = {"action": "export_selected", "_selected_action": str(course.id)}
    answer = admin_client.post(reverse(LIST), chosen)
    assert answer["Content-Type"].startswith("text/csv")


def test_filters(admin_client, admin_user):
    a, b, c, d = explained(recovered(), lost("globex"), left(), normal())
    mine = lost(model="large")
    explained()
    mine.change(review="assigned")
    SessionReview.objects.create(session=mine.row, assignee=admin_user)
    one, two, three, four, five = (course.row.reference for course in (a, b, c, d, mine))
    assert shown(admin_client) == {one, two, five}
    for query, found in (
        ("outcome=all", {one, two, three, five}),
        ("outcome=left", {three}),
        ("outcome=recovered", {one}),
        ("outcome=suspended", set()),
        ("outcome=lost", {two, five}),
        ("cause=engine_oom", {one}),
        ("cause=client_gone&outcome=left", {three}),
        ("node=gpu-3", {one, two, five}),
        ("node=none", set()),
        ("model=large", {five}),
        (f"tenant={b.row.tenant_id}", {two}),
        ("noticed=yes", {two, five}),
        ("noticed=no", {one}),
        ("review=needed", {two}),
        ("review=mine", {five}),
        ("review=assigned", {five}),
        ("review=reviewed", set()),
    ):
        assert shown(admin_client, query) == found, query
    assert four not in shown(admin_client, "outcome=all")


def test_the_filters_offer_what_there_is(admin_client):
    explained(recovered(), lost(model="large"))
    html = admin_client.get(reverse(LIST)).content.decode()
    for link in ("?model=large", "?model=small", "?node=gpu-3"):
        assert link in html
    assert "?node=gpu-1" not in html


def test_the_date_hierarchy(admin_client):
    now = timezone.now()
    this, before = recovered(), recovered(began=now - timedelta(days=400))
    explained()
    at = timezone.localtime(this.row.interrupted_at)
    then = timezone.localtime(before.row.interrupted_at)
    html = admin_client.get(reverse(LIST)).content.decode()
    for year in {at.year, then.year}:
        assert f"?interrupted_at__year={year}" in html
    query = f"interrupted_at__year={then.year}&interrupted_at__month={then.month}"
    assert shown(admin_client, query) == {before.row.reference}
    html = admin_client.get(f"{reverse(LIST)}?{query}").content.decode()
    assert f"interrupted_at__day={then.day}" in html.replace("&amp;", "&")
    assert shown(admin_client, f"{query}&interrupted_at__day={then.day}")


@pytest.mark.parametrize("page", [LIST, SESSIONS])
def test_search(admin_client, page):
    course = lost(reference="K7Q-4MX", request_id="req-abc-1", end_user="user-17")
    other = lost(reference="B2B-2B2", request_id="other", end_user="user-18")
    explained()
    IdempotencyKey.objects.create(
        tenant=course.row.tenant, key="my key/1", body_digest=b"", session_id=course.id
    )
    both = {"K7Q-4MX", "B2B-2B2"}
    for term, found in (
        ("K7Q-4MX", {"K7Q-4MX"}), ("k7q4mx", {"K7Q-4MX"}), ("k7q", {"K7Q-4MX"}),
        (str(course.id), {"K7Q-4MX"}), (str(course.id)[:18], None),
        (f"chatcmpl-{course.id.hex}", {"K7Q-4MX"}),
        ("req-abc-1", {"K7Q-4MX"}), ("req-", {"K7Q-4MX"}),
        ("user-17", {"K7Q-4MX"}), ("user-1", both), ("us", set()),
        ("my key/1", {"K7Q-4MX"}), ("my key", set()), ("%", set()), ("nothing", set()),
    ):  # fmt: skip
        seen = shown(admin_client, f"q={term.replace('%', '%25')}", page)
        assert seen == found or (found is None and "K7Q-4MX" in seen), term
    assert other.row.reference not in shown(admin_client, "q=user-17&outcome=lost", LIST)


def test_who_sees_one_tenant_sees_its_sessions_only(client):
    a, b = explained(recovered("acme"), lost("globex", end_user="theirs", model="secret"))
    user = User.objects.create_user("pat", password="x", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_streamsession"))
    TenantMember.objects.create(user=user, tenant=a.row.tenant)
    client.force_login(user)
    assert shown(client) == {a.row.reference}
    assert shown(client, "q=theirs") == set()
    assert "secret" not in client.get(reverse(LIST)).content.decode()
    front = client.get(reverse("admin:index")).content.decode()
    assert a.row.reference in front
    assert b.row.reference not in front


def test_who_may_not_see_sessions(client):
    explained(recovered())
    client.force_login(User.objects.create_user("pat", password="x", is_staff=True))
    assert client.get(reverse(LIST)).status_code == 403
    assert "Interrupted sessions" not in client.get(reverse("admin:index")).content.decode()


def test_one_page_of_a_session(admin_client):
    (course,) = explained(lost())
    page = reverse("admin:streaming_interruptedsession_change", args=[course.id])
    answer = admin_client.get(page)
    assert answer.status_code == 302
    assert answer["Location"] == reverse("admin:streaming_streamsession_change", args=[course.id])


def test_the_front_page(admin_client):
    yesterday = timezone.now() - timedelta(hours=30)
    a, b, c = explained(recovered(end_user=SCRIPT), lost(), left())
    (old,) = explained(lost(began=yesterday))
    html = admin_client.get(reverse("admin:index")).content.decode()
    assert html.index("Interrupted sessions, last 24 hours") < html.index('class="app-')
    for course in (a, b):
        assert course.row.reference in html
    for course in (c, old):
        assert course.row.reference not in html
    assert "Engine stopped answering on gpu-3" in html
    assert '<div class="is-bad"><dt>Lost</dt><dd>1</dd></div>' in html
    assert SCRIPT not in html


def test_pages_are_right_when_the_worker_is_dead(admin_client):
    course = lost()
    ChangedSession.objects.update(at=timezone.now() - timedelta(minutes=1))
    assert shown(admin_client) == {course.row.reference}
    other = lost()
    ChangedSession.objects.update(at=timezone.now() - timedelta(minutes=1))
    assert other.row.reference in admin_client.get(reverse("admin:index")).content.decode()


@pytest.mark.parametrize(
    ("page", "query"),
    [(LIST, ""), (LIST, "outcome=all&cause=engine_frozen"), (LIST, "q=user-1"), (SESSIONS, ""),
     (SESSIONS, "q=user-1")],
)  # fmt: skip
def test_as_many_queries_for_many_sessions_as_for_one(admin_client, page, query):
    url = f"{reverse(page)}?{query}"
    explained(lost(end_user="user-1"))
    admin_client.get(url)  # what is cached once
    with CaptureQueriesContext(connection) as one:
        admin_client.get(url)
    explained(*(lost(end_user="user-1") for _ in range(12)))
    with CaptureQueriesContext(connection) as many:
        admin_client.get(url)
    assert len(many) <= len(one) <= 18, [query["sql"][:200] for query in many]
