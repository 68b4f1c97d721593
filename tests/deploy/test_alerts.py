"""Rules and alerts as files: they load, they do what their tests say, and each has its runbook."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands

from tests.deploy.monitoring import ROOT, RULE_FILES, RULES, program, rules
from tests.deploy.promql import family, grouped_labels, metrics_of, selected_labels
from tests.metrics.test_documentation import documented

RUNBOOKS = ROOT / "docs" / "runbooks.md"
TESTS = sorted((RULES / "tests").glob("*.yaml"))
ALERTS = [rule for rule in rules() if "alert" in rule]
PROMETHEUS_OWN = {"up": {"job", "instance"}}


def known_metrics() -> dict[str, set[str]]:
    """Ours, those that our rules record, and Prometheus' own; each with its labels."""
    ours = {name: {*labels, "le"} for name, (_, labels) in documented().items()}
    recorded = {rule["record"]: set(rule.get("labels", {})) for rule in rules() if "record" in rule}
    return {**ours, **recorded, **PROMETHEUS_OWN}


def check_names(where: str, expression: str) -> None:
    """Every metric in it exists, and has the labels that are asked for."""
    known = known_metrics()
    names = metrics_of(expression)
    assert names, where
    allowed = {"instance", "job", "le"}
    for name in names:
        assert family(name) in known, f"{where}: there is no {name}"
        allowed |= known[family(name)]
    for name, label in selected_labels(expression):
        assert label in known[family(name)] | {"instance"}, f"{where}: {name} has no {label}"
    assert grouped_labels(expression) <= allowed, where


def promtool(*arguments: object) -> None:
    done = subprocess.run(
        [program("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_load():
    promtool("check", "rules", *RULE_FILES)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_alerts_fire_and_are_silent_as_their_tests_say(path: Path):
    promtool("test", "rules", path)


def test_each_alert_is_tested_to_fire_and_to_be_silent():
    names = [test["name"] for path in TESTS for test in yaml.safe_load(path.read_text())["tests"]]
    wanted = [f"{alert['alert']} {what}" for alert in ALERTS for what in ("fires", "is silent")]
    assert sorted(names) == sorted(wanted)


def test_rules_speak_of_metrics_that_exist():
    for rule in rules():
        if not rule["expr"].startswith("vector("):
            check_names(rule.get("alert") or rule["record"], rule["expr"])


def test_each_alert_says_what_to_do():
    sections = set(re.findall(r"^### (\w+)$", RUNBOOKS.read_text(), re.MULTILINE))
    for alert in ALERTS:
        name, told = alert["alert"], alert["annotations"]
        assert alert["labels"]["severity"] in ("critical", "warning", "info"), name
        assert set(told) == {"summary", "description", "runbook_url"}, name
        assert told["runbook_url"] == f"docs/runbooks.md#{name.lower()}"
    assert sections == {alert["alert"] for alert in ALERTS}, "one section an alert, and no other"


def test_runbooks_are_whole_and_their_links_lead_somewhere():
    text = RUNBOOKS.read_text()
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        for part in ("Means", "Readers notice", "Look first", "Do", "Harmless"):
            assert f"* **{part}:** " in section, f"{section.split()[0]} has no {part}"
    anchors = {name.lower() for name in re.findall(r"^### (\w+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", text)) <= anchors
    for name in re.findall(r"\]\((\w[\w-]*\.md)", text):
        assert (RUNBOOKS.parent / name).is_file(), name


def test_commands_of_runbooks_exist():
    named = set(re.findall(r"manage\.py (\w+)", RUNBOOKS.read_text()))
    assert named
    assert named <= set(get_commands())


@pytest.mark.django_db
def test_pages_of_runbooks_answer(admin_client):
    paths = sorted(set(re.findall(r"`(/admin/[\w/]*)`", RUNBOOKS.read_text())))
    assert len(paths) > 10
    for path in paths:
        assert admin_client.get(path).status_code == 200, path
