"""The doctor finds nothing wrong with the nginx that we ship."""

from __future__ import annotations

from pathlib import Path

from gateway_project.doctor.finding import Level
from gateway_project.doctor.public import Public
from tests.deploy.nginx import Nginx
from tests.doctor.test_path import bad, look
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack


def test_our_own_nginx(tmp_path: Path) -> None:
    settings = {"TRUSTED_PROXIES": "127.0.0.1", "HTTPS_ONLY": "1"}
    with (
        SimulatorProcess("vllm", pace=100) as engine,
        Stack(gateways=2, engine_nodes=[f"a=vllm+{engine.url}"], env=settings) as stack,
        Nginx(tmp_path, [one.port for one in stack.gateways]) as nginx,
    ):
        key = stack.api_key()
        findings = look(Public(url=nginx.url, key=key, ca=str(nginx.authority), patience=3.0))
        unknown = look(Public(url=nginx.url, key=key))
    # The tests' certificates are for a day or two.
    assert bad(findings) <= {"TLS"}, [findings[name] for name in bad(findings)]
    assert "TLSv1.3" in findings["TLS"].seen
    assert findings["HTTP/2"].level is Level.OK
    assert "by https" in findings["forwarded"].seen
    assert "met 2 gateway processes" in findings["spread"].seen
    assert "TLS" in bad(unknown)
    assert "reachable" not in unknown  # nobody is asked whose certificate is not believed
