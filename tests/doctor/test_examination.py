"""Checks are apart from each other, secrets stay hidden, reports read well."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_project.doctor import machine
from gateway_project.doctor.examination import Check, Found, examine, worst
from gateway_project.doctor.finding import Finding, Level, failure, note, ok
from gateway_project.doctor.report import TextReport, as_json
from gateway_project.doctor.secrets import HIDDEN, Secrets, secrets_of
from gateway_project.management.commands.doctor import SUBJECTS
from tests.stack import ROOT

NOTHING = Secrets([])


def breaks() -> Iterator[Finding]:
    yield ok("first", "fine")
    raise OSError("postgresql://u:hunter22@db/x does not answer")


def test_what_breaks_is_a_finding_and_the_others_are_made():
    secrets = secrets_of({"DATABASE_URL": "postgresql://u:hunter22@db/x"})
    checks = [Check("a", "broken", breaks), Check("b", "good", lambda: [ok("second", "fine")])]
    found = list(examine(checks, secrets))
    assert [(one.subject, one.finding.check) for one in found] == [
        ("a", "first"), ("a", "broken"), ("b", "second"),
    ]  # fmt: skip
    assert "OSError" in found[1].finding.seen
    assert "hunter22" not in found[1].finding.seen
    assert worst(found) is Level.FAILURE


def test_what_hangs_is_left():
    ended = threading.Event()

    def hangs() -> Iterator[Finding]:
        yield ok("first", "fine")
        ended.wait(60)

    found = list(examine([Check("a", "hanging", hangs, 0.2)], NOTHING))
    ended.set()
    assert [one.finding.check for one in found] == ["first", "hanging"]
    assert "0.2 s" in found[1].finding.seen


def test_secrets():
    environment = {
        "SECRET_KEY": "s3cr3t-one", "AUDIT_KEY": "older-key-1, newer-key-2", "METRICS_TOKEN": "tok-en-3",
        "REDIS_URL": "redis://:p%40ss-word4@h/0", "DSN": "host=db password='pass-wd-5' user=u",
        "PATH": "/usr/bin", "SHORT_KEY": "abc",
    }  # fmt: skip
    secrets = secrets_of(environment, ["ub-live-6666"])
    text = (
        "s3cr3t-one older-key-1 newer-key-2 tok-en-3 p%40ss-word4 p@ss-word4 pass-wd-5 ub-live-6666"
    )
    assert secrets.hidden(text) == " ".join([HIDDEN] * 8)
    assert secrets.hidden("/usr/bin abc") == "/usr/bin abc"
    assert "s3cr3t" not in repr(secrets)


FOUND = [
    Found("machine", ok("memory", "enough")),
    Found("redis", Finding(check="clock", level=Level.WARNING, seen="is off " * 20, advice="Keep it.", doc="docs/doctor.md#redis")),
]  # fmt: skip


@pytest.mark.parametrize("colour", [True, False])
def test_text(colour):
    report = TextReport(colour=colour, width=80)
    text = "\n".join(line for one in FOUND for line in report.lines(one)) + report.summary()
    assert ("\x1b[" in text) is colour
    if not colour:
        assert max(len(line) for line in text.split("\n")) <= 80
        assert "WARNING" in text
        assert "→ Keep it." in text
        assert "docs/doctor.md#redis" in text
        assert text.endswith("0 failure, 1 warning, 0 note, 1 ok")


def test_json():
    told = json.loads(as_json(FOUND, worst(FOUND)))
    assert told["level"] == "warning"
    assert told["findings"][0] == {
        "subject": "machine", "check": "memory", "level": "ok", "seen": "enough", "advice": "", "doc": "",
    }  # fmt: skip


def test_levels():
    order = [ok("a", "x"), note("a", "x"), failure("a", "x", "y")]
    assert worst([Found("s", one) for one in order[:2]]) is Level.NOTE
    assert worst([Found("s", one) for one in order]) is Level.FAILURE
    assert worst([]) is Level.OK


def test_what_the_kernel_says(tmp_path: Path):
    files = {
        "sys/net/core/somaxconn": "4096\n",
        "sys/net/ipv4/tcp_tw_reuse": "2\n",
        "sys/net/ipv4/tcp_fin_timeout": "60\n",
        "sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "net/sockstat": "sockets: used 9\nTCP: inuse 3 orphan 0 tw 1531 alloc 4 mem 1\n",
        "cgroup/memory.max": "2147483648\n",
        "cgroup/memory.current": "1048576\n",
        "cgroup/memory.events": "low 0\noom 1\noom_kill 3\n",
        "cgroup/pids.max": "max\n",
        "cgroup/pids.current": "12\n",
        "cgroup/cpu.max": "150000 100000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    kernel = machine.read_kernel(tmp_path)
    assert (kernel.somaxconn, kernel.tw_reuse, kernel.fin_timeout) == (4096, 2, 60)
    assert (kernel.ports, kernel.time_wait, kernel.entropy) == ((32768, 60999), 1531, None)
    container = machine.read_container(tmp_path / "cgroup")
    assert container == machine.Container(
        memory_limit=2 << 30, memory_used=1 << 20, oom_kills=3, pids_used=12, cpus=1.5
    )
    assert machine.read_container(tmp_path / "none") == machine.Container()


def test_what_findings_refer_to_is_there():
    """Pages, and the sections of pages."""
    source = "".join(path.read_text() for path in (ROOT / "gateway_project/doctor").glob("*.py"))
    references = set(re.findall(r'"((?:docs|deploy)/[\w./-]+(?:#[\w-]+)?)"', source))
    assert len(references) > 8
    for reference in references | {f"docs/doctor.md#{subject}" for subject in SUBJECTS}:
        page, _, section = reference.partition("#")
        text = (ROOT / page).read_text()
        anchors = {
            re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-")
            for head in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        }
        assert not section or section in anchors, reference
