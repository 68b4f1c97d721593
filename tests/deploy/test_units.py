"""The systemd units, and that what ``docs/deployment.md`` and the files say of each other is so."""

from __future__ import annotations

import importlib.util
import re
import shlex

import pytest

from tests.deploy.nginx import DEPLOY

ROOT = DEPLOY.parent
PYTHON = "/opt/unbroken/.venv/bin/python"
SERVICES = sorted(DEPLOY.glob("systemd/*.service"))
NEEDED = {
    "User": "unbroken",
    "EnvironmentFile": "/etc/unbroken/env",
    "WorkingDirectory": "/opt/unbroken",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "CapabilityBoundingSet": "",
}


def settings(text: str) -> dict[str, list[str]]:
    """Every ``Name=value`` of a unit; systemd allows several of a name."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_service(path) -> None:
    unit = settings(path.read_text())
    assert {name: unit[name][0] for name in NEEDED} == NEEDED
    for command in unit["ExecStart"]:
        python, *arguments = shlex.split(command)
        assert python == PYTHON
        if arguments[0] == "-m":
            assert importlib.util.find_spec(arguments[1]) is not None
        else:
            assert arguments[:2] in (
                ["manage.py", "check"],
                ["manage.py", "migrate"],
                ["manage.py", "collectstatic"],
            )
    if unit["Type"] == ["exec"]:
        assert unit["WantedBy"] == unit["PartOf"] == ["unbroken.target"]
        assert unit["Restart"] == ["always"]
        assert unit["KillSignal"] == ["SIGTERM"]
        assert "MemoryMax" in unit


def test_the_gateways_of_nginx_are_those_of_the_guide() -> None:
    guide = (ROOT / "docs/deployment.md").read_text()
    (line,) = re.findall(r"^systemctl enable --now .*$", guide, re.MULTILINE)
    started = re.findall(r"unbroken-gateway@(\d+)", line)
    upstream = (DEPLOY / "nginx/gateways.conf").read_text()
    assert started == re.findall(r"^\s+server 127\.0\.0\.1:(\d+)", upstream, re.MULTILINE)
    (lowest,) = re.findall(
        r"^net\.ipv4\.ip_local_port_range = (\d+) \d+$",
        (DEPLOY / "sysctl.conf").read_text(),
        re.MULTILINE,
    )
    assert all(int(port) < int(lowest) for port in started), "somebody else could sit on it"
    named = {name.removesuffix("@.service").removesuffix(".service") for name in _names()}
    for name in re.findall(r"\b(unbroken-[a-z]+)\b", line):
        assert name in named


def test_every_file_that_is_named_is_there() -> None:
    files = [*DEPLOY.glob("*"), *DEPLOY.glob("nginx/*"), *SERVICES, ROOT / "docs/deployment.md"]
    texts = [path.read_text() for path in files if path.is_file()]
    named = set(re.findall(r"\bdeploy/[\w./-]*\w", "\n".join(texts)))
    made_by_the_operator = r"deploy/(env|certificates(/.*)?)"
    assert [
        name
        for name in sorted(named)
        if not re.fullmatch(made_by_the_operator, name) and not (ROOT / name).exists()
    ] == []


def _names() -> set[str]:
    return {path.name for path in SERVICES}
