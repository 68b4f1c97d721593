"""Who may open and do what: every page and every action of the admin, for every role.

The tables are compared with the admin itself, so that a page, a table or an action which nobody has
thought of here is a failure. On the way every page is looked at: no errors, no content, and for the
admin of a tenant nothing of another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client, RequestFactory
from django.urls import reverse

from streaming.admin.tenancy import OfTenant
from streaming.models import Incident, StreamSession, Tenant
from tests.admin.two_tenants import (
    CONTENT,
    OURS,
    PERSONS,
    THEIRS,
    fill_both,
    log_in,
    patterns,
    row_of,
)

pytestmark = pytest.mark.django_db

SUP, REV, FIN, OPS, TEN = "support", "content_reviewer", "finance", "operator", "tenant_admin"
NONE: set[str] = set()
"""Nobody but superusers, where there is any such page at all."""

# Who may view, add, change and delete rows, besides superusers.
TABLES: dict[str, tuple[set[str], set[str], set[str], set[str]]] = {
    "auth.group": (NONE, NONE, NONE, NONE),
    "auth.user": (NONE, NONE, NONE, NONE),
    "billing.auditentry": ({FIN}, NONE, NONE, NONE),
    "billing.billingaccount": ({FIN}, {FIN}, {FIN}, NONE),
    "billing.billingperiod": ({FIN}, NONE, NONE, NONE),
    "billing.budgetalert": ({FIN, TEN}, NONE, NONE, NONE),
    "billing.bulkcredit": ({FIN}, NONE, NONE, NONE),
    "billing.creditrequest": ({FIN}, NONE, NONE, NONE),
    "billing.eventdelivery": ({FIN}, NONE, NONE, NONE),
    "billing.export": ({FIN}, NONE, NONE, NONE),
    "billing.ledgerentry": ({FIN}, NONE, NONE, NONE),
    "billing.pricelist": ({FIN}, {FIN}, NONE, NONE),
    "billing.quotause": ({FIN, TEN}, NONE, NONE, NONE),
    "billing.settlement": ({FIN}, NONE, NONE, NONE),
    "billing.usagerecord": ({FIN, TEN}, NONE, NONE, NONE),
    "billing.usagesink": ({FIN}, {FIN}, {FIN}, NONE),
    "streaming.apikey": ({TEN}, {TEN}, {TEN}, NONE),
    "streaming.attempt": ({SUP, REV, FIN, OPS, TEN}, NONE, NONE, NONE),
    "streaming.embedtoken": ({SUP, TEN}, NONE, NONE, NONE),
    "streaming.contentrule": ({SUP, REV, OPS, TEN}, {TEN}, {TEN}, {TEN}),
    "streaming.flaggedsession": ({SUP, REV, FIN, OPS, TEN}, NONE, NONE, NONE),
    "streaming.gatewayinstance": ({OPS}, NONE, NONE, NONE),
    "streaming.incident": ({SUP, FIN, OPS}, NONE, NONE, NONE),
    "streaming.inferencenode": ({SUP, OPS}, {OPS}, {OPS}, {OPS}),
    "streaming.interruptedsession": ({SUP, REV, FIN, OPS, TEN}, NONE, NONE, NONE),
    "streaming.modelalias": ({OPS, TEN}, {OPS}, {OPS}, {OPS}),
    "streaming.modelpolicy": ({OPS}, {OPS}, {OPS}, {OPS}),
    "streaming.nodeevent": ({SUP, OPS}, NONE, NONE, NONE),
    "streaming.outboxmessage": ({OPS}, NONE, NONE, NONE),
    "streaming.sessionevent": ({SUP, REV, FIN, OPS, TEN}, NONE, NONE, NONE),
    "streaming.streamsession": ({SUP, REV, FIN, OPS, TEN}, NONE, NONE, NONE),
    "streaming.taskrun": ({OPS}, NONE, NONE, NONE),
    "streaming.tenant": ({SUP, REV, FIN, OPS, TEN}, NONE, NONE, NONE),
    "streaming.tokencheckpoint": ({SUP, OPS}, NONE, NONE, NONE),
    "streaming.webhookdelivery": ({SUP, OPS, TEN}, NONE, NONE, NONE),
    "streaming.webhookendpoint": ({SUP, OPS, TEN}, {TEN}, {OPS, TEN}, NONE),
}
NOT_EVEN_SUPERUSERS = {  # what Django's own pages would do to these
    "add": {
        "billing.auditentry", "billing.billingperiod", "billing.budgetalert", "billing.bulkcredit",
        "billing.creditrequest", "billing.eventdelivery", "billing.export", "billing.ledgerentry",
        "billing.quotause", "billing.settlement", "billing.usagerecord", "streaming.attempt",
        "streaming.embedtoken", "streaming.flaggedsession", "streaming.gatewayinstance", "streaming.incident", "streaming.interruptedsession",
        "streaming.nodeevent",
        "streaming.outboxmessage", "streaming.sessionevent", "streaming.streamsession",
        "streaming.taskrun", "streaming.tokencheckpoint", "streaming.webhookdelivery",
    },
}  # fmt: skip
NOT_EVEN_SUPERUSERS["change"] = {*NOT_EVEN_SUPERUSERS["add"], "billing.pricelist"}
NOT_EVEN_SUPERUSERS["delete"] = {
    *NOT_EVEN_SUPERUSERS["change"], "billing.billingaccount", "billing.usagesink", "streaming.apikey",
    "streaming.tenant", "streaming.webhookendpoint",
}  # fmt: skip
EVERYBODY = {*PERSONS}

# Pages beside Django's own: who may open them, besides superusers; and with what in the address.
PAGES: dict[str, set[str]] = {
    "auth_user_password_change": NONE,
    "billing_auditentry_verify": {FIN},
    "billing_billingperiod_close": {FIN},
    "billing_billingperiod_reconcile": {FIN},
    "billing_bulkcredit_begin": {FIN},
    "billing_export_make": {FIN},
    "billing_ledgerentry_adjust": {FIN},
    "billing_ledgerentry_credit": {FIN},
    "billing_pricelist_end": {FIN},
    "billing_pricelist_prices": {FIN},
    "streaming_contentrule_try": {SUP, REV, OPS, TEN},
    "streaming_contentrule_try_one": {SUP, REV, OPS, TEN},
    "streaming_incident_do/take": {SUP},
    "streaming_incident_do/assign": {SUP},
    "streaming_incident_do/review": {SUP},
    "streaming_incident_do/close": {OPS},
    "streaming_inferencenode_order/probe": {OPS},
    "streaming_inferencenode_order/reclaim": {OPS},
    "streaming_inferencenode_order/reset_circuit": {OPS},
    "streaming_streamsession_do/stop": {SUP},
    "streaming_streamsession_do/continue": {SUP},
    "streaming_streamsession_do/take": {SUP, REV},
    "streaming_streamsession_do/assign": {SUP, REV},
    "streaming_streamsession_do/review": {SUP, REV},
    "streaming_streamsession_do/reopen": {SUP, REV},
    "streaming_streamsession_do/purge": {REV},
    "streaming_streamsession_evidence": {SUP},
    "streaming_streamsession_evidence_json": {SUP},
    "streaming_streamsession_reveal": {REV},
    "streaming_tenant_end_user": {REV},
}
REDIRECTS = {
    "streaming_flaggedsession_change",
    "streaming_interruptedsession_change",
}  # to the one page of a session
"""Pages behind a ``/`` are of one name in ``urls``, and differ in another part of the address."""

QUERIES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "streaming_streamsession_do": lambda row: {"session": row.pk},
    "billing_ledgerentry_credit": lambda row: {"charge": row.pk},
    # Its rows are found by their session only.
    "streaming_tokencheckpoint": lambda row: {"_changelist_filters": f"q={row.session_id}"},
}
"""What the address of a page, or of every page of a table, has after the question mark."""

SITE: dict[str, set[str]] = {
    "index": EVERYBODY,
    "login": EVERYBODY,
    "logout": EVERYBODY,
    "password_change": EVERYBODY,
    "password_change_done": EVERYBODY,
    "autocomplete": EVERYBODY,  # for what: test_tenancy
    "jsi18n": EVERYBODY,
    "view_on_site": EVERYBODY,  # nothing has an address there
    "app_list": EVERYBODY,
    "second_factor": EVERYBODY,  # tests/project/test_second_factor.py
}

ON_SESSIONS = {
    **{f"{deed}_selected": {SUP} for deed in ("stop", "continue")},
    **{f"{deed}_selected": {SUP, REV} for deed in ("take", "assign", "review", "reopen")},
    "export_selected": {SUP},
    "purge_selected": {REV},
}  # fmt: skip

# Actions on rows that are chosen in a list: who has them, besides superusers.
ACTIONS: dict[str, dict[str, set[str]]] = {
    "billing.billingperiod": {"close": {FIN}},
    "billing.bulkcredit": {"approve": {FIN}, "refuse": {FIN}},
    "billing.creditrequest": {"approve": {FIN}, "refuse": {FIN}},
    "billing.ledgerentry": {"credit_selected": {FIN}},
    "billing.usagesink": {name: {FIN} for name in ["switch_on", "switch_off", "send_test", "send_again", "rotate"]},
    "streaming.apikey": {"revoke": {TEN}},
    "streaming.embedtoken": {"revoke": {TEN}},
    "streaming.inferencenode": {name: {OPS} for name in ["drain", "resume", "probe", "reclaim", "reset_circuit", "delete_selected"]},
    "streaming.modelalias": {"delete_selected": {OPS}},
    "streaming.modelpolicy": {"delete_selected": {OPS}},
    "streaming.streamsession": ON_SESSIONS,
    "streaming.flaggedsession": ON_SESSIONS,
    "streaming.interruptedsession": ON_SESSIONS,
    "streaming.webhookdelivery": {"send_again": {OPS, TEN}},
    "streaming.webhookendpoint": {name: {OPS, TEN} for name in ["switch_on", "switch_off", "send_test", "rotate", "end_former_secret"]},
    "streaming.contentrule": {"delete_selected": {TEN}},
    "auth.user": {"delete_selected": NONE},
    "auth.group": {"delete_selected": NONE},
}  # fmt: skip

MODELS = {model._meta.label_lower: model for model in admin.site._registry}
STANDARD = ("changelist", "add", "history", "delete", "change")


def standard_names() -> set[str]:
    return {f"{label.replace('.', '_')}_{page}" for label in MODELS for page in STANDARD}


def test_every_table_and_every_page_is_here():
    assert set(TABLES) == set(MODELS)
    names = {pattern.name for pattern in patterns()}
    assert names - standard_names() == {name.partition("/")[0] for name in (*PAGES, *SITE)}


def may(person: str, allowed: set[str], label: str = "", deed: str = "") -> bool:
    if person == "superuser":
        return label not in NOT_EVEN_SUPERUSERS.get(deed, ())
    return person in allowed


def addresses(label: str, tenant: Any) -> list[tuple[str, str]]:
    """Every page of a table, by name, and its address about a row of the tenant."""
    row = row_of(MODELS[label], tenant)
    of_interruption = Incident.objects.filter(kind="interruption").values_list("pk", flat=True)
    prefix = label.replace(".", "_")
    found = []
    for pattern in patterns():
        if not (pattern.name or "").startswith(f"{prefix}_"):
            continue
        converters = pattern.pattern.converters
        for name in [one for one in PAGES if one.partition("/")[0] == pattern.name] or [
            pattern.name
        ]:
            part = name.partition("/")[2]
            keys = {one: part if one == "name" else row.pk for one in converters}
            if "incident_id" in keys and part != "close":
                keys["incident_id"] = of_interruption[0]
            address = reverse(f"admin:{pattern.name}", kwargs=keys)
            query = QUERIES.get(pattern.name) or QUERIES.get(prefix)
            if query is not None and not name.endswith("_changelist"):
                address += "?" + urlencode(query(row))
            found.append((name, address))
    return found


def is_open_to(person: str, label: str, name: str) -> bool:
    """Whether this person may open this page."""
    view, add, change, delete = TABLES[label]
    page = name.removeprefix(f"{label.replace('.', '_')}_")
    if name in PAGES:
        return may(person, PAGES[name])
    if page == "add":
        return may(person, add, label, "add")
    if page == "delete":
        return may(person, delete, label, "delete")
    return may(person, view | change)


@pytest.mark.parametrize("person", PERSONS)
def test_everything_that_there_is_for(person, caplog):
    caplog.set_level(
        logging.ERROR, "django.request"
    )  # hundreds of refusals, each with its traceback
    tenants = fill_both()
    client = log_in(person, tenants[OURS])
    assert wrong_actions(person) == []
    assert wrong_pages(person, client, tenants) == []


def wrong_actions(person: str) -> list[Any]:
    request = RequestFactory().get("/")
    request.user = User.objects.get(username=person)
    wrong = []
    for label, model in MODELS.items():
        has = set(admin.site._registry[model].get_actions(request))
        should = {name for name, allowed in ACTIONS.get(label, {}).items() if may(person, allowed)}
        if has != should:
            wrong.append((label, "too many", has - should, "missing", should - has))
    return wrong


def wrong_pages(person: str, client: Client, tenants: dict[str, Tenant]) -> list[Any]:
    theirs = [THEIRS, "ZZZ-999", str(StreamSession.objects.get(reference="ZZZ-999").pk)]
    wrong: list[Any] = []

    def look(name: str, address: str, allowed: set[int]) -> None:
        answer = client.get(address)
        page = answer.content.decode()
        if answer.status_code not in allowed:
            wrong.append((name, address, answer.status_code, allowed))
        if any(one in page for one in CONTENT):
            wrong.append((name, address, "content"))
        if person == TEN and any(one in page for one in theirs):
            wrong.append((name, address, "another tenant"))

    for label in sorted(MODELS):
        scoped = isinstance(admin.site._registry[MODELS[label]], OfTenant)
        for name, address in addresses(label, tenants[OURS]):
            if person == "nobody" and name.endswith(STANDARD[1:]):
                continue  # who may not see the list
            refused = {403, 404} if scoped and person in (TEN, "nobody") else {403}
            opened = {302} if name in REDIRECTS else {200}
            look(name, address, opened if is_open_to(person, label, name) else refused)
        if scoped and person == TEN:
            for name, address in addresses(label, tenants[THEIRS]):
                if not name.endswith(("_changelist", "_add", "_contentrule_try")):
                    look(name, address, {403, 404})
    for path in ("/admin/", "/admin/time-zone/"):
        look("site", path, {200})
    watches = person in ("superuser", SUP, OPS)
    for path in ("/admin/live/", "/admin/live/data"):
        look("live", path, {200} if watches else {403})
    for path in ("/admin/streaming/", "/admin/billing/"):
        look("app_list", path, {404} if person == "nobody" else {200, 404})
    return wrong
