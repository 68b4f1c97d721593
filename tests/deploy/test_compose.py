"""``deploy/compose.yaml`` and ``deploy/Dockerfile``: valid, and of one mind with settings, nginx and kernel files.

No container is started: validity is the Compose specification's, by a parser that refuses unknown words.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose, parse_duration
from django.db import connection

from streaming.conf import StreamingConf
from tests.deploy.nginx import DEPLOY, Nginx

ROOT = DEPLOY.parent
OURS = ("migrate", "gateway-1", "gateway-2", "worker", "beat")
WITH_GRACE = ("gateway-1", "gateway-2", "worker", "nginx")


def example() -> dict[str, str]:
    """Variables of ``env.example``, also those that are commented out."""
    lines = (DEPLOY / "env.example").read_text().splitlines()
    found = [re.fullmatch(r"(?:# )?([A-Z][A-Z_]+)=(.*)", line) for line in lines]
    return {one[1]: one[2] for one in found if one}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """What Compose makes of the file, with ``POSTGRES_PASSWORD=x``."""
    text = (DEPLOY / "compose.yaml").read_text()

    def value(variable: re.Match[str]) -> str:
        name, kind, otherwise = variable.groups()
        assert kind != ":?" or name in example(), f"{name} is not in env.example"
        return otherwise if kind == ":-" else "x"

    spec = yaml.safe_load(re.sub(r"\$\{(\w+)(:[-?])?([^}]*)\}", value, text))
    PyCompose.from_yaml(yaml.safe_dump(spec)).to_spec()
    return spec


def test_unknown_words_would_be_noticed(compose: dict[str, Any]) -> None:
    """Of the validator, not of our file."""
    for name, value in {"prots": [], "stop_grace_period": "2 days", "mem_limit": "a lot"}.items():
        wrong = {**compose, "services": {"nginx": {**compose["services"]["nginx"], name: value}}}
        with pytest.raises(ValueError, match=name):
            PyCompose.from_yaml(yaml.safe_dump(wrong))


def test_every_variable_is_a_setting(compose: dict[str, Any]) -> None:
    known = set(
        re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE)
    )
    named = {*example(), *(k for name in OURS for k in compose["services"][name]["environment"])}
    assert named - known == {"POSTGRES_PASSWORD"}, "the database's own"
    for name in ("SECRET_KEY", "AUDIT_KEY", "METRICS_TOKEN", "POSTGRES_PASSWORD"):
        assert example()[name] == "", f"{name} is a secret"


def test_every_command_is_there(compose: dict[str, Any]) -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    default = re.search(r"^CMD \[(.*)\]$", dockerfile, re.MULTILINE)
    assert default is not None
    commands = {name: compose["services"][name]["command"] for name in OURS}
    assert [part.strip('" ') for part in default[1].split(",")] == commands["gateway-1"]
    assert commands["gateway-1"] == commands["gateway-2"]
    for name, command in commands.items():
        if name == "migrate":
            lines = [shlex.split(line) for line in command[-1].splitlines()]
            assert [line[2] for line in lines] == ["check", "migrate", "collectstatic"]
            continue
        assert command[:2] == ["python", "-m"]
        assert importlib.util.find_spec(command[2]) is not None
    # What systemd runs is the same.
    for name in ("worker", "beat"):
        unit = (DEPLOY / f"systemd/unbroken-{name}.service").read_text()
        theirs = re.search(r"^ExecStart=/opt/unbroken/.venv/bin/(.*)$", unit, re.MULTILINE)
        assert theirs is not None
        assert theirs[1].replace("/var/lib/unbroken", "/data") == " ".join(commands[name])


def test_the_image_has_what_the_code_needs() -> None:
    copied = set(re.findall(r"^COPY (\S+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE))
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "bench"}
    assert packages | {"manage.py", "templates", "requirements.txt"} == copied
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == copied
    left_out = re.search(r"grep -vE '\^\((.*)\)=='", (DEPLOY / "Dockerfile").read_text())
    assert left_out is not None
    _, embedded = (ROOT / "requirements.txt").read_text().split("# Only where DATABASE_URL")
    assert set(left_out[1].split("|")) == set(re.findall(r"^([\w-]+)==", embedded, re.MULTILINE))


def test_who_stops_waits_for_the_grace(compose: dict[str, Any]) -> None:
    grace = StreamingConf().shutdown_grace
    assert float(example()["SHUTDOWN_GRACE"]) == grace
    for name in WITH_GRACE:
        period = parse_duration(compose["services"][name]["stop_grace_period"])
        assert period >= grace + 20, name
    unit = (DEPLOY / "systemd/unbroken-gateway@.service").read_text()
    stop = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) >= grace + 20


def test_every_service_has_its_limits(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert "mem_limit" in service, name
    for name in ("gateway-1", "gateway-2", "nginx"):
        assert compose["services"][name]["ulimits"]["nofile"] == {"soft": 65535, "hard": 65535}
    unit = (DEPLOY / "systemd/unbroken-gateway@.service").read_text()
    assert "\nLimitNOFILE=65535\n" in unit
    limits = [
        line.split()
        for line in (DEPLOY / "limits.conf").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert {tuple(line[1:]) for line in limits} == {
        ("soft", "nofile", "65535"),
        ("hard", "nofile", "65535"),
    }


def test_nginx_is_who_is_trusted(compose: dict[str, Any]) -> None:
    nginx = compose["services"]["nginx"]
    address = nginx["networks"]["inside"]["ipv4_address"]
    for name in OURS:
        assert compose["services"][name]["environment"]["TRUSTED_PROXIES"] == address
    mounted = {Path(volume.split(":")[0]) for volume in nginx["volumes"] if volume.startswith(".")}
    assert mounted - {Path("certificates")} == {
        Path("nginx.conf"),
        Path("nginx"),
        Path("nginx/gateways.compose.conf"),
    }
    upstream = (DEPLOY / "nginx/gateways.compose.conf").read_text()
    servers = re.findall(r"server ([\w-]+):8000 resolve", upstream)
    assert servers == ["gateway-1", "gateway-2"]
    assert f"proxy_read_timeout {example()['PROXY_IDLE_SECONDS']}s;" in (
        (DEPLOY / "nginx/proxy.conf").read_text()
    )


def test_nginx_loads_what_compose_gives_it(tmp_path: Path) -> None:
    nginx = Nginx(tmp_path, [8000])
    shipped = (DEPLOY / "nginx/gateways.compose.conf").read_text()
    (tmp_path / "nginx/gateways.conf").write_text(shipped)
    assert "warn" not in nginx.run("-t")


def test_kernel_settings_are_those_of_the_file(compose: dict[str, Any]) -> None:
    lines = (DEPLOY / "sysctl.conf").read_text().splitlines()
    settings = dict(re.split(r"\s*=\s*", line) for line in lines if line and line[0] != "#")
    assert settings["net.core.somaxconn"] == "32768"
    assert settings["net.ipv4.tcp_tw_reuse"] == "1"
    assert settings["net.ipv4.tcp_fin_timeout"] == "30"
    in_container = compose["services"]["nginx"]["sysctls"]
    assert {name: str(value) for name, value in in_container.items()} == settings
    for name in settings:  # a name that is misspelt is one that this kernel does not know
        assert Path("/proc/sys", *name.split(".")).exists(), name


@pytest.mark.django_db
def test_its_database_is_that_of_the_tests(compose: dict[str, Any]) -> None:
    tested = connection.cursor().connection.info.server_version // 10000
    assert compose["services"]["postgres"]["image"] == f"postgres:{tested}"
    for name in ("deployment", "operations"):
        text = (ROOT / f"docs/{name}.md").read_text()
        assert f"the tests use {tested}" in text or f"Version {tested} is what the tests" in text
