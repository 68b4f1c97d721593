"""Somebody else's cluster: what its file says is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.chaos.given import GivenCluster

TOLD = """
url = "https://gateway.example.com"
key_file = "chaos.key"
model = "a-model"

[nodes]
gpu-a = "http://10.0.0.7:8000"

[exporters]
gpu-a = "http://10.0.0.7:9400/metrics"

[faults.node_kill]
targets = ["gpu-a", "gpu b"]
strike = "echo killed {target} >> done"
undo = "echo back {target} >> done"

[faults.gateway_kill]
targets = ["gateway-0"]
strike = "exit 3"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "chaos.key").write_text("ub-secret\n")
    path = tmp_path / "cluster.toml"
    path.write_text(TOLD)
    return path


def test_what_the_file_says(path: Path) -> None:
    cluster = GivenCluster(path)
    assert cluster.gateways == ["https://gateway.example.com"]
    assert cluster.nodes == {"gpu-a": "http://10.0.0.7:8000"}
    assert cluster.exporters == {"gpu-a": "http://10.0.0.7:9400/metrics"}
    assert (cluster.key, cluster.model, cluster.exact) == ("ub-secret", "a-model", False)
    assert cluster.targets == {"node_kill": ["gpu-a", "gpu b"], "gateway_kill": ["gateway-0"]}
    assert cluster.sql is None
    assert cluster.unsettled() == 0


def test_commands_are_run_beside_the_file(path: Path) -> None:
    cluster = GivenCluster(path)
    cluster.strike("node_kill", "gpu b")
    cluster.undo("node_kill", "gpu b")
    assert (path.parent / "done").read_text() == "killed gpu b\nback gpu b\n"
    cluster.undo("gateway_kill", "gateway-0")


def test_a_command_that_fails_is_told(path: Path) -> None:
    with pytest.raises(OSError, match="ended with 3"):
        GivenCluster(path).strike("gateway_kill", "gateway-0")


def test_unknown_faults_are_told(path: Path) -> None:
    path.write_text(TOLD.replace("faults.gateway_kill", "faults.gateway_kil"))
    with pytest.raises(ValueError, match="gateway_kil"):
        GivenCluster(path)


def test_exporters_of_unknown_nodes_are_told(path: Path) -> None:
    path.write_text(TOLD.replace('gpu-a = "http://10.0.0.7:9400', 'gpu-z = "http://10.0.0.7:9400'))
    with pytest.raises(ValueError, match="exporters of no node: gpu-z"):
        GivenCluster(path)
