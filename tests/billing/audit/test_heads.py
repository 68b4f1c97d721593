"""The signed head, in log lines and manifests."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest

from billing.models import AuditHead
from billing.services import heads
from billing.services.heads import Head
from gateway_project.logs import LineFormatter
from tests.billing.audit.rows import tell

pytestmark = pytest.mark.django_db


@pytest.fixture
def head() -> Head:
    tell()
    return heads.publish()


def with_key(settings, key: str) -> None:
    settings.BILLING = dataclasses.replace(settings.BILLING, audit_key=key)


def test_the_head_is_published_as_a_log_line(caplog):
    tell(2)
    caplog.set_level("INFO", logger="billing.audit")
    head = heads.publish()
    (record,) = caplog.records
    stored = AuditHead.objects.get()
    assert (head.seq, head.hash_hex) == (2, bytes(stored.hash).hex())
    assert record.getMessage() == (
        f"audit head seq=2 sha256={head.hash_hex} signature={head.signature}"
    )
    assert heads.parse(LineFormatter().format(record)) == head


def test_it_is_logged_whatever_the_log_level(settings):
    assert settings.LOGGING["loggers"]["billing.audit"]["level"] == "INFO"
    assert logging.getLogger("billing.audit").isEnabledFor(logging.INFO)


def test_only_who_has_the_key_can_have_signed(head):
    assert head.is_ours
    for change in (
        {"seq": 4}, {"hash_hex": "0" * 64}, {"signature": "0" * 64},
    ):  # fmt: skip
        assert not dataclasses.replace(head, **change).is_ours


def test_the_key_is_the_audit_key_where_there_is_one(settings, head):
    with_key(settings, "old")
    assert not head.is_ours  # signed with what SECRET_KEY gives
    old = heads.publish()
    with_key(settings, "new, old")
    new = heads.publish()
    assert old.is_ours
    assert new.is_ours
    assert new.signature != old.signature
    with_key(settings, "new")
    assert new.is_ours
    assert not old.is_ours
    with_key(settings, "")
    assert head.is_ours
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "rotated"
    assert head.is_ours


def test_a_manifest_holds_it(head, tmp_path):
    manifest = {"period": "2026-11", "audit_head": head.for_manifest()}
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest, indent=2))
    assert list(heads.read(path)) == [heads.of_manifest(manifest)] == [head]


@pytest.mark.parametrize(
    "manifest", [{}, {"audit_head": None}, {"audit_head": {"seq": 1}},
                 {"audit_head": {"seq": "1", "hash": "0" * 64, "signature": "0" * 64}},
                 {"audit_head": {"seq": 1, "hash": "xyz", "signature": "0" * 64}}],
)  # fmt: skip
def test_a_manifest_without_one_is_refused(manifest, tmp_path):
    with pytest.raises(ValueError, match="no audit head"):
        heads.of_manifest(manifest)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="no audit head"):
        list(heads.read(path))


def test_logs_are_read_whatever_stands_around_the_heads(head, tmp_path):
    tell()
    later = heads.publish()
    path = tmp_path / "gateway.log"
    lines = [
        "2026-11-29T16:17:00.123Z INFO streaming.runtime session ended",
        f"2026-11-29T16:17:00.123Z INFO billing.audit {head}",
        json.dumps({"level": "INFO", "message": str(later)}),
    ]
    path.write_text("\n".join(lines))
    assert list(heads.read(path)) == [head, later]
    path.write_text("\n".join(reversed(lines)))  # begins as a manifest does
    assert list(heads.read(path)) == [later, head]
    path.write_bytes(b"\xff\xfe nothing here\n")
    with pytest.raises(ValueError, match="no audit head"):
        list(heads.read(path))


def test_the_manifests_of_our_own_exports_are_known(settings, head, tmp_path):
    settings.DATA_DIR = tmp_path
    assert list(heads.kept()) == []
    told = {"audit_head": head.for_manifest()}
    for name, manifest in (("a-mended", {}), ("b", told), (".unfinished-c", told)):
        path = tmp_path / "exports" / name / "manifest.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(manifest))
    assert list(heads.kept()) == [head]
