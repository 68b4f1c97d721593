"""The files of ``deploy/`` that nginx reads: they load without a word, and agree with the gateway's settings."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import streaming
from gateway_project.server.__main__ import _parser
from streaming.conf import StreamingConf
from tests.deploy.nginx import DEPLOY, Nginx

ANSWER = """\
nginx: the configuration file {0}/nginx.conf syntax is ok
nginx: configuration file {0}/nginx.conf test is successful
"""
UNITS = {"s": 1, "m": 60, "h": 3600}


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    return Nginx(tmp_path_factory.mktemp("config"), [8001, 8002])


def values(name: str) -> list[str]:
    """What the directive is given, wherever it stands."""
    texts = [path.read_text() for path in (DEPLOY / "nginx.conf", *DEPLOY.glob("nginx/*.conf"))]
    found = re.findall(rf"^\s*{name}\s+([^;]+);", "\n".join(texts), re.MULTILINE)
    assert found, f"there is no {name}"
    return found


def seconds(name: str) -> float:
    (value,) = values(name)
    return float(value[:-1]) * UNITS[value[-1]]


def test_it_loads_without_a_warning(nginx: Nginx) -> None:
    assert nginx.run("-t") == ANSWER.format(nginx.directory)
    assert nginx.errors == ""


@pytest.mark.parametrize(
    ("name", "value"),
    {
        "worker_rlimit_nofile": "65535",
        "worker_connections": "16384",
        "use": "epoll",
        "multi_accept": "on",
        "http2": "on",
        "proxy_http_version": "1.1",
        "proxy_buffering": "off",
        "proxy_request_buffering": "on",
        "chunked_transfer_encoding": "on",
        "proxy_ignore_client_abort": "off",
        "proxy_next_upstream": "error timeout",
        "proxy_read_timeout": "300s",
        "ssl_early_data": "off",
    }.items(),
)
def test_what_streams_need(name: str, value: str) -> None:
    assert values(name) == [value]


def test_every_port_is_shared_by_the_workers() -> None:
    assert all("reuseport" in listen for listen in values("listen"))


def test_it_agrees_with_the_gateway() -> None:
    conf = StreamingConf()
    (body,) = values("client_max_body_size")
    assert body == f"{conf.max_body_bytes // 2**20}m"
    assert values("client_body_buffer_size") == [body], "no prompt is written to a disk"
    assert f"larger than {conf.max_body_bytes} bytes" in (DEPLOY / "nginx/errors.conf").read_text()
    assert seconds("worker_shutdown_timeout") >= conf.shutdown_grace
    assert seconds("proxy_read_timeout") > conf.engine_silence
    parser: argparse.ArgumentParser = _parser()
    idle = parser.get_default("request_seconds")
    gateways = (DEPLOY / "nginx/gateways.conf").read_text()
    kept = re.search(r"keepalive_timeout (\d+)s;", gateways)
    assert kept is not None
    assert int(kept[1]) < idle, "nginx has to give a connection up before the gateway does"


def test_every_kind_of_static_file_has_a_type() -> None:
    kinds = {
        path.suffix.removeprefix(".")
        for path in (Path(streaming.__file__).parent / "static").rglob("*")
        if path.is_file()
    }
    types = (DEPLOY / "nginx/types.conf").read_text()
    known = set(re.findall(r"^\s+\S+/\S+\s+(.*);$", types, re.MULTILINE))
    assert kinds <= {kind for line in known for kind in line.split()}
