"""The second factor of staff: set up, asked for, slowed down, taken away; and what it keeps out."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django_otp.oath import totp
from django_otp.plugins.otp_static.models import StaticToken
from django_otp.plugins.otp_totp.models import TOTPDevice

from gateway_project.checks import second_factor as check
from streaming.consumers.staff import Handshake
from streaming.models import OutboxMessage

pytestmark = pytest.mark.django_db

PASSWORD = "a password of some length"
PAGE = "/admin/second-factor/"
LOGIN = "/admin/login/"
BEHIND = [
    "/admin/",
    "/admin/streaming/streamsession/",
    "/admin/password_change/",
    "/admin/time-zone/",
]


@pytest.fixture
def pat() -> User:
    return User.objects.create_superuser("pat", password=PASSWORD)


@pytest.fixture
def log_in(pat) -> Callable[[], Client]:
    """A browser in which pat has typed the password."""

    def log_in() -> Client:
        client = Client()
        answer = client.post(LOGIN, {"username": "pat", "password": PASSWORD, "next": "/admin/"})
        assert answer.status_code == 302
        return client

    return log_in


def token(device: TOTPDevice | None = None) -> str:
    """What pat's app shows now, as if it had not been used yet."""
    device = device or TOTPDevice.objects.get()
    TOTPDevice.objects.filter(pk=device.pk).update(last_t=-1)
    return f"{totp(device.bin_key):06}"


def wrong() -> str:
    return f"{(int(token()) + 500_000) % 1_000_000:06}"


def forget_the_wait() -> None:
    TOTPDevice.objects.update(throttling_failure_timestamp=None)


def send(client: Client, do: str, code: str = "", to: str = PAGE) -> Any:
    return client.post(to, {"do": do, "token": code})


def enrol(client: Client) -> list[str]:
    """Set it up as a person would; the backup codes."""
    send(client, "begin")
    shown = send(client, "confirm", token())
    assert "not shown again" in shown.text
    return re.findall(r"<li><code>(\w+)</code>", shown.text)


def announced() -> list[tuple[str, str, dict[str, Any]]]:
    rows = OutboxMessage.objects.filter(kind="audit").order_by("id").values_list("data", flat=True)
    return [(row["action"], row["actor"], row["data"]) for row in rows]


def is_sent_to_the_page(client: Client, path: str) -> bool:
    answer = client.get(path)
    return answer.status_code == 302 and answer["Location"].startswith(PAGE)


def test_off_there_is_none(settings, log_in, pat):
    settings.STAFF_SECOND_FACTOR = "off"
    TOTPDevice.objects.create(user=pat, confirmed=True)  # of former times
    client = log_in()
    assert client.get("/admin/").status_code == 200
    assert client.get(PAGE).status_code == 404
    assert "second-factor" not in client.get("/admin/").text


def test_optional_whoever_has_one_is_asked(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "optional"
    client = log_in()
    assert client.get("/admin/").status_code == 200
    assert PAGE in client.get("/admin/").text
    enrol(client)
    assert client.get("/admin/").status_code == 200  # shown in this browser
    other = log_in()
    assert all(is_sent_to_the_page(other, path) for path in BEHIND)
    assert "Your password was right" in other.get(PAGE).text
    answer = send(other, "verify", token(), to=f"{PAGE}?next=/admin/streaming/streamsession/")
    assert answer["Location"] == "/admin/streaming/streamsession/"
    assert other.get("/admin/").status_code == 200


def test_required_whoever_has_none_sets_one_up_before_anything_else(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "required"
    client = log_in()
    assert all(is_sent_to_the_page(client, path) for path in BEHIND)
    for model in ("apikey", "tenant"):
        url = reverse(f"admin:streaming_{model}_add")
        assert client.post(url, {"name": "acme"})["Location"].startswith(PAGE)
    assert "before anything else" in client.get(PAGE).text
    enrol(client)
    assert client.get("/admin/").status_code == 200


@pytest.mark.parametrize("path", ["/billing/statements/1/", "/billing/exports/{id}/manifest.json"])
def test_downloads_are_behind_it_too(settings, log_in, path):
    settings.STAFF_SECOND_FACTOR = "required"
    client = log_in()
    assert is_sent_to_the_page(client, path.format(id="0" * 8 + "-0000-0000-0000-" + "0" * 12))


def test_the_public_pages_and_the_way_out_stay_open(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "required"
    client = log_in()
    assert client.get("/").status_code == 200
    assert client.get("/admin/jsi18n/").status_code == 200
    assert client.post("/admin/logout/").status_code == 200
    assert client.get("/admin/")["Location"].startswith(LOGIN)


def test_a_value_that_is_none_protects_the_most(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "requried"
    assert is_sent_to_the_page(log_in(), "/admin/")


def test_the_picture_and_the_secret_lead_to_the_same_codes(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "optional"
    client = log_in()
    send(client, "begin")
    page = client.get(PAGE)
    assert "no-store" in page["Cache-Control"]
    assert '<svg width="' in page.text
    assert "style=" not in page.text[page.text.index("<svg") : page.text.index("</svg>")]
    assert "<script>" not in page.text
    secret = re.search(r'unbroken-secret">([A-Z2-7 ]+)<', page.text)
    assert secret
    device = TOTPDevice.objects.get()
    assert f"secret={secret[1].replace(' ', '')}" in device.config_url
    assert "issuer=Unbroken" in device.config_url
    send(client, "begin")  # another secret, and the first is gone
    assert TOTPDevice.objects.get().key != device.key
    send(client, "leave")
    assert not TOTPDevice.objects.exists()


def test_it_counts_only_once_a_code_was_shown(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "optional"
    client = log_in()
    send(client, "begin")
    refused = send(client, "confirm", wrong())
    assert "clock of your phone" in refused.text
    assert not TOTPDevice.objects.filter(confirmed=True).exists()
    assert log_in().get("/admin/").status_code == 200


def test_a_code_is_taken_once(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "optional"
    enrol(log_in())
    code = token()
    assert send(log_in(), "verify", code).status_code == 302
    again = send(log_in(), "verify", code)
    assert "or an old one" in again.text


def test_a_backup_code_lets_in_once(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "optional"
    codes = enrol(log_in())
    assert len(set(codes)) == 10
    spelled = f" {codes[0][:4].upper()}-{codes[0][4:].upper()} "
    client = log_in()
    assert send(client, "verify", spelled).status_code == 302
    assert client.get("/admin/").status_code == 200
    assert "9 backup codes left" in client.get(PAGE).text
    assert "no code of yours" in send(log_in(), "verify", codes[0]).text
    assert ("second_factor.backup_code_used", "user:pat", {"left": 9}) in announced()


def test_who_guesses_has_to_wait_and_it_is_audited(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "optional"
    enrol(log_in())
    client = log_in()
    assert "no code of yours" in send(client, "verify", wrong()).text
    for code in (wrong(), token()):  # even the right one
        assert "wait a while" in send(client, "verify", code).text
    assert is_sent_to_the_page(client, "/admin/")
    forget_the_wait()
    assert "no code of yours" in send(client, "verify", wrong()).text
    counted = [data for action, _, data in announced() if action == "second_factor.refused"]
    assert counted == [{"failures": 1}, {"failures": 2}]
    forget_the_wait()
    assert send(client, "verify", token()).status_code == 302
    assert TOTPDevice.objects.get().throttling_failure_count == 0


@pytest.mark.parametrize("do", ["begin", "confirm", "codes", "remove", "leave", "", "else"])
def test_without_it_nothing_of_it_can_be_changed(settings, log_in, do):
    """Somebody who knows the password only."""
    settings.STAFF_SECOND_FACTOR = "optional"
    enrol(log_in())
    before = list(TOTPDevice.objects.values_list("key", "confirmed"))
    codes = set(StaticToken.objects.values_list("token", flat=True))
    client = log_in()
    send(client, do, wrong())
    assert list(TOTPDevice.objects.values_list("key", "confirmed")) == before
    assert set(StaticToken.objects.values_list("token", flat=True)) == codes
    assert is_sent_to_the_page(client, "/admin/")


def test_another_phone_replaces_the_first_and_ends_other_sessions(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "optional"
    client, other = log_in(), log_in()
    enrol(client)
    send(other, "verify", token())
    assert other.get("/admin/").status_code == 200
    first = TOTPDevice.objects.get()
    send(client, "begin")
    send(client, "confirm", token(TOTPDevice.objects.get(confirmed=False)))
    assert TOTPDevice.objects.get().key != first.key
    assert client.get("/admin/").status_code == 200
    assert is_sent_to_the_page(other, "/admin/")


def test_codes_are_made_anew_and_the_whole_is_removed_for_a_code(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "optional"
    client = log_in()
    former = enrol(client)
    assert "no code of yours" in send(client, "codes", wrong()).text
    forget_the_wait()
    shown = send(client, "codes", token())
    assert len(re.findall(r"<li><code>", shown.text)) == 10
    assert former[0] not in shown.text
    send(client, "remove", token())
    assert not TOTPDevice.objects.exists()
    assert not StaticToken.objects.exists()
    assert client.get("/admin/").status_code == 200
    assert [action for action, _, _ in announced()] == [
        "second_factor.enrolled", "second_factor.backup_codes_made", "second_factor.refused",
        "second_factor.backup_codes_made", "second_factor.removed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wanted", ["https://evil.example/", "//evil.example", "javascript:alert(1)"]
)
def test_nobody_is_sent_elsewhere(settings, log_in, wanted):
    settings.STAFF_SECOND_FACTOR = "optional"
    enrol(log_in())
    answer = send(log_in(), "verify", token(), to=f"{PAGE}?next={wanted}")
    assert answer["Location"] == "/admin/"


def test_an_operator_takes_away_one_whose_phone_is_lost(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "required"
    enrol(log_in())
    out = StringIO()
    call_command("second_factor", stdout=out)
    assert re.search(r"pat +yes +10", out.getvalue())
    call_command("second_factor", "reset", "pat", stdout=out)
    call_command("second_factor", "reset", "pat", stdout=out)
    assert "pat has no second factor any more." in out.getvalue()
    assert "pat had none." in out.getvalue()
    assert "before anything else" in log_in().get(PAGE).text
    action, actor, _ = announced()[-1]
    assert action == "second_factor.removed"
    assert actor.startswith("command:")
    with pytest.raises(CommandError, match="no user nobody"):
        call_command("second_factor", "reset", "nobody")
    with pytest.raises(CommandError, match="Say whose"):
        call_command("second_factor", "reset")


def test_sockets_of_the_admin_ask_for_it_too(settings, log_in):
    settings.STAFF_SECOND_FACTOR = "optional"
    passed = log_in()
    enrol(passed)
    for client, may in ((passed, True), (log_in(), False)):
        cookie = f"sessionid={client.cookies['sessionid'].value}".encode()
        handshake = Handshake({"path": "/ws/admin/live/", "headers": [(b"cookie", cookie)]})
        assert (handshake.staff() is not None) is may


def test_no_page_shows_the_secrets_of_others(admin_client, pat):
    TOTPDevice.objects.create(user=pat, confirmed=True)
    for path in ("otp_totp/totpdevice/", "otp_static/staticdevice/"):
        assert admin_client.get(f"/admin/{path}").status_code == 404


def test_checks(settings):
    assert check() == []
    settings.STAFF_SECOND_FACTOR = "sometimes"
    assert [one.id for one in check()] == ["gateway.E005"]
    settings.STAFF_SECOND_FACTOR = "required"
    settings.MIDDLEWARE = [one for one in django_settings.MIDDLEWARE if "second_factor" not in one]
    assert [one.id for one in check()] == ["gateway.E006"]
