"""The command and the daily task."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from billing.services import heads, verification
from billing.tasks import publish_audit_head, verify_audit_log
from streaming.models import Incident, TaskRun
from tests.billing.audit.rows import settle, tamper, tell

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def exports_of_its_own(settings, tmp_path):
    """The manifests of exports publish heads; those of other tests are of other logs."""
    settings.DATA_DIR = tmp_path / "data"


def run(*arguments: object) -> str:
    out = StringIO()
    call_command("verify_audit", *map(str, arguments), stdout=out)
    return out.getvalue()


def told(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The numbers of the heads that were published."""
    found = [heads.parse(record.getMessage()) for record in caplog.records]
    return [head.seq for head in found if head is not None]


def run_broken(*arguments: object) -> tuple[list[str], CommandError]:
    out = StringIO()
    with pytest.raises(CommandError) as raised:
        call_command("verify_audit", *map(str, arguments), stdout=out)
    return out.getvalue().splitlines(), raised.value


def test_the_command_says_that_all_is_well(tmp_path):
    settle()
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"audit_head": heads.publish().for_manifest()}))
    tell()
    log = tmp_path / "gateway.log"
    log.write_text(f"INFO billing.audit {heads.publish()}\n")
    assert run("--heads", manifest, log) == (
        "Nothing was changed, removed or added: 5 audit entries, 2 rows that they witness,"
        " 2 published heads.\n"
    )


def test_the_command_names_the_first_broken_row_and_fails():
    tell(3)
    tamper("UPDATE billing_auditentry SET actor = 'user:eve' WHERE seq > 1")
    lines, error = run_broken()
    assert lines[0] == "billing_auditentry 2 was changed: its hash does not fit its columns"
    assert "broken in 2 places" in str(error)
    assert error.returncode == 1


def test_a_log_without_a_head_is_told_and_the_others_count(tmp_path):
    tell(2)
    began_anew, mended, log = (tmp_path / name for name in ("anew.log", "manifest.json", "a.log"))
    began_anew.write_text("INFO started\n")
    mended.write_text("{}")
    log.write_text(f"INFO billing.audit {heads.publish()}\n")
    out, err = StringIO(), StringIO()
    paths = map(str, (began_anew, mended, log))
    call_command("verify_audit", "--heads", *paths, stdout=out, stderr=err)
    assert "1 published heads" in out.getvalue()
    assert err.getvalue().splitlines() == [
        f"{began_anew} tells of no audit head",
        f"{mended}: the manifest has no audit head",
    ]
    tamper("UPDATE billing_auditentry SET actor = 'user:eve' WHERE seq = 2")
    run_broken("--heads", began_anew, log)
    with pytest.raises(CommandError, match="None of the files"):
        run("--heads", began_anew, mended)


def test_the_command_counts_what_it_does_not_tell(monkeypatch):
    monkeypatch.setattr(verification, "TOLD", 2)
    tell(5)
    tamper("UPDATE billing_auditentry SET actor = 'user:eve'")
    lines, _ = run_broken()
    assert lines[2:] == ["and 3 more"]


def test_a_file_without_heads_is_no_proof(tmp_path):
    path = tmp_path / "empty.log"
    path.touch()
    assert "None of the files tells" in str(run_broken("--heads", path)[1])
    assert "No such file" in str(run_broken("--heads", tmp_path / "none")[1])


def test_the_task_opens_an_incident_and_closes_it(caplog):
    tell(3)
    caplog.set_level("INFO", logger="billing.audit")
    assert verify_audit_log() == {"checked": 3, "broken": 0, "head": 3}
    assert not Incident.objects.exists()
    assert told(caplog) == [3]
    tamper("UPDATE billing_auditentry SET actor = 'user:eve' WHERE seq = 2")
    for _ in range(2):
        assert verify_audit_log()["broken"] == 1
    incident = Incident.objects.get()
    assert (incident.kind, incident.closed_at) == ("audit_broken", None)
    assert incident.data["first"].startswith("billing_auditentry 2 was changed")
    assert any(record.levelname == "ERROR" for record in caplog.records)
    tamper("UPDATE billing_auditentry SET actor = 'user:pat' WHERE seq = 2")
    verify_audit_log()
    incident.refresh_from_db()
    assert incident.closed_at is not None
    assert TaskRun.objects.get(name="verify_audit_log").runs == 4


def test_the_task_knows_the_heads_in_manifests(settings, tmp_path):
    settings.DATA_DIR = tmp_path
    tell(3)
    path = tmp_path / "exports" / "some" / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"audit_head": heads.publish().for_manifest()}))
    tamper("DELETE FROM billing_auditentry")
    tamper("DELETE FROM billing_audithead")
    verify_audit_log()
    assert Incident.objects.get().data["first"] == (
        "billing_auditentry 1 to 3 are missing: entry 3 was published, the log ends at 0"
    )


def test_the_head_is_published_often(caplog):
    tell(1)
    caplog.set_level("INFO", logger="billing.audit")
    publish_audit_head()
    assert told(caplog) == [1]
