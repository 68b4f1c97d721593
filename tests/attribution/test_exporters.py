"""What GPU exporters and the Kubernetes API say, read from recorded answers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from datetime import UTC, datetime, timedelta

import pytest

from streaming.conf import conf
from streaming.core.nodes import NodeOptions
from streaming.engines.vllm import VLLM
from streaming.fleet import exporters as exporters_module
from streaming.fleet.exporters import (
    ExporterError,
    Exporters,
    Findings,
    parse_gpus,
    parse_pod,
    read_gpus_now,
)
from streaming.fleet.nodes import Fleet, Node
from tests.attribution.edges import POD, Edges, dcgm_page, ended_pod
from tests.durability.reader import until

MIB = 1024 * 1024


def test_all_gpus_of_a_host():
    reading = parse_gpus(dcgm_page(xid0=48, xid1=13, ecc0=1))
    assert reading.xids == (("0", 48), ("1", 13))
    assert reading.ecc_errors == 4
    assert (reading.memory_used, reading.memory_free) == (72000 * MIB, 88000 * MIB)
    assert reading.memory_share == 0.45


@pytest.mark.parametrize(
    "choice", [{"gpus": ["0"]}, {"pod": "serving/vllm-0"}, {"gpus": ["0"], "pod": "else/where"}]
)
def test_the_gpus_of_one_node(choice):
    reading = parse_gpus(dcgm_page(xid1=94), **choice)
    assert reading.xids == ()
    assert reading.ecc_errors == 0
    assert reading.memory_share == 0.9


def test_an_exporter_that_knows_nothing_of_pods_counts_whole():
    page = dcgm_page(ecc0=1).replace("namespace=", "ns=").replace("pod=", "p=")
    assert parse_gpus(page, pod="serving/vllm-0").ecc_errors == 4


def test_names_that_prometheus_has_moved_aside():
    page = dcgm_page(ecc0=1).replace("namespace=", "exported_namespace=")
    page = page.replace("pod=", 'pod="exporter-x",exported_pod=')
    assert parse_gpus(page, pod="serving/vllm-0").ecc_errors == 1


@pytest.mark.parametrize("page", ["", "<html>", "up 1\n", 'DCGM_FI_DEV_FB_USED{gpu="0" 1\n'])
def test_what_is_no_page_of_an_exporter(page):
    with pytest.raises(ExporterError):
        parse_gpus(page)


def test_values_that_are_none():
    page = 'DCGM_FI_DEV_XID_ERRORS{gpu="0"} NaN\nDCGM_FI_DEV_FB_USED{gpu="0"} +Inf\n'
    reading = parse_gpus(page)
    assert (reading.xids, reading.memory_used, reading.memory_share) == ((), None, None)


def test_a_pod_that_runs():
    reading = parse_pod(json.dumps(POD).encode())
    assert (reading.restarts, reading.exit_code, reading.oom_killed) == (2, None, False)


def test_a_pod_whose_container_was_killed_for_its_memory():
    pod = ended_pod(reason="OOMKilled", exit_code=137, finished_at="2026-11-29T10:00:00Z")
    reading = parse_pod(json.dumps(pod).encode())
    assert (reading.restarts, reading.exit_code, reading.oom_killed) == (3, 137, True)
    assert reading.ended_at == datetime(2026, 11, 29, 10, tzinfo=UTC)


def test_a_pod_that_was_evicted():
    assert parse_pod(b'{"status": {"phase": "Failed", "reason": "Evicted"}}').gone


@pytest.mark.parametrize("body", [b"", b"[]", b'{"kind": "Status"}', b'{"status": []}'])
def test_what_is_no_pod(body):
    with pytest.raises(ExporterError):
        parse_pod(body)


@pytest.fixture
async def edges(settings, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    async with Edges() as server:
        settings.STREAMING = dataclasses.replace(
            conf(), kubernetes_api=server.url, kubernetes_account=str(tmp_path)
        )
        yield server


@pytest.fixture
async def node(edges):
    options = NodeOptions.parse(
        {"gpu_metrics": f"{edges.url}/metrics#0", "pod": "serving/vllm-0", "continuation": "ids"}
    )
    dialect = VLLM.__new__(VLLM)  # nobody asks the engine anything here
    return Node(7, "gpu-a", "http://127.0.0.1:9", dialect, options)


@pytest.fixture
async def reader(node, monkeypatch):
    monkeypatch.setattr(exporters_module, "BEFORE_SECONDS", 0.0)
    fleet = Fleet()
    fleet.nodes[node.id] = node
    exporters = Exporters(fleet)
    exporters.start()
    await until(lambda: exporters.latest(node) is not None, 60)
    yield exporters
    await exporters.stop()


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_nothing_new_is_no_finding(reader, node, edges):
    assert await reader.look(node, now()) == Findings(memory_used=0.9)
    assert reader.latest(node).gpu.memory_used == 72000 * MIB
    assert set(edges.tokens) == {"Bearer secret"}


async def test_only_what_is_new_counts(reader, node, edges):
    edges.page = dcgm_page(xid0=48, xid1=79, ecc0=2)
    found = await reader.look(node, now())
    assert (found.xids, found.ecc_errors, found.speak) == (frozenset({48}), 2, True)


async def test_an_error_from_long_before_is_not_blamed_on_the_engine(edges, node, monkeypatch):
    monkeypatch.setattr(exporters_module, "BEFORE_SECONDS", 0.0)
    edges.page = dcgm_page(xid0=48, ecc0=5)
    edges.pod = ended_pod(
        reason="OOMKilled", exit_code=137, finished_at="2026-11-01T10:00:00Z", restarts=2
    )
    fleet = Fleet()
    fleet.nodes[node.id] = node
    exporters = Exporters(fleet)
    # Before the first reading too: what may be old proves nothing.
    assert not (await exporters.look(node, now())).speak
    exporters.start()
    await until(lambda: exporters.latest(node) is not None)
    assert not (await exporters.look(node, now())).speak
    await exporters.stop()


async def test_a_container_that_ended_just_now(reader, node, edges):
    at = (datetime.now(UTC) - timedelta(seconds=1)).isoformat().replace("+00:00", "Z")
    edges.pod = ended_pod(reason="OOMKilled", exit_code=137, finished_at=at)
    found = await reader.look(node, now())
    assert (found.oom_killed, found.exit_code, found.restarts) == (True, 137, 1)


async def test_a_pod_that_is_gone(reader, node, edges):
    edges.pod = None
    assert (await reader.look(node, now())).gone


async def test_an_exporter_that_is_away_says_nothing(reader, node, edges):
    edges.page = None
    edges.pod = {"kind": "Status"}
    assert await reader.look(node, now()) == Findings()


async def test_a_reading_without_a_loop(node, edges):
    reading = await asyncio.to_thread(read_gpus_now, node.options)
    assert reading.memory_share == 0.9
    assert read_gpus_now(NodeOptions()) is None
    edges.page = None
    with pytest.raises(ExporterError):
        await asyncio.to_thread(read_gpus_now, node.options)
