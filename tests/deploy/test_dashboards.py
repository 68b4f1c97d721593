"""Dashboards and rules: as files, and asked of a real Prometheus that has scraped a real stack."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.billing.worker import Worker
from tests.deploy.monitoring import (
    BOARDS,
    GRAFANA,
    Prometheus,
    board,
    panel_expressions,
    panels,
    rules,
)
from tests.deploy.test_alerts import ALERTS, check_names
from tests.durability.reader import Readers, question, until
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

TOKENS = 300
TOKEN = "only for tests"
SUSPENDED = "SELECT count(*) FROM streaming_streamsession WHERE state = 'suspended'"
FAILING = """
SELECT count(*) FROM streaming_attempt a JOIN session_fence f USING (session_id)
WHERE a.node_name = 'a' AND a.ended_at IS NULL AND f.durable_seq > 20
"""

# What a run with one crash and no other trouble has nothing of.
MAY_BE_EMPTY = {
    "fleet: Fragmentation index",  # a task of every five minutes finds it
    "fleet: Hedges",
    "money: Incidents",
    "streams: Errors told",
    "streams: Reader lag p95 by level",
    "money: Burn rate, 6 h",  # its rules take a minute
}


def boxes(dashboard: dict[str, Any]) -> list[dict[str, int]]:
    return [panel["gridPos"] for panel in dashboard["panels"]]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_one_that_grafana_takes(path: Path):
    dashboard = board(path)
    assert dashboard["schemaVersion"] >= 39
    assert re.fullmatch(r"[\w-]{1,40}", dashboard["uid"])
    assert dashboard["title"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for box in boxes(dashboard):
        assert box["x"] >= 0
        assert box["x"] + box["w"] <= 24
    for one, other in itertools.combinations(boxes(dashboard), 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        ), (one, other)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert "datasource" in variables
    known = {alert["alert"].lower() for alert in ALERTS}
    for panel in panels(dashboard):
        title = panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, title
        defaults = panel["fieldConfig"]["defaults"]
        unit = panel["options"]["yAxis"] if panel["type"] == "heatmap" else defaults
        assert unit["unit"], title
        books = re.findall(r"docs/runbooks\.md#(\w+)", panel["description"])
        assert books, f"{title} does not say what to do"
        assert set(books) <= known, title
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"], title
            used = set(re.findall(r"\$(?!__)\{?(\w+)", target["expr"]))
            assert used <= variables, title


def test_dashboards_have_ids_of_their_own():
    uids = [board(path)["uid"] for path in BOARDS]
    assert len(set(uids)) == len(uids) == 3


def test_provisioning_names_a_prometheus_and_the_dashboards():
    provisioning = GRAFANA / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["type"] == "prometheus"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "unbroken.yaml").read_text())[
        "providers"
    ]
    assert provider["type"] == "file"
    assert provider["options"]["path"]


def test_dashboards_speak_of_metrics_that_exist():
    for where, expression in panel_expressions():
        check_names(where, expression.replace("vector(0)", "0"))


async def test_a_real_prometheus_answers_everything(start_stack, tmp_path: Path) -> None:
    with SimulatorProcess("vllm", pace=60) as a, SimulatorProcess("vllm", pace=60) as b:
        stack: Stack = start_stack(
            engine_nodes=[f"a=vllm+{a.url}", f"b=vllm+{b.url}"],
            env={
                "HEALTH_INTERVAL": "0.2", "GRACE_SECONDS": "0.3", "METRICS_TOKEN": TOKEN,
                "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics"),
            },
        )  # fmt: skip
        gateway, key = stack.gateway(), stack.api_key()
        async with (
            Prometheus(tmp_path / "prometheus", gateway.url, TOKEN) as prometheus,
            Readers(gateway.url, key) as readers,
        ):
            with Worker(stack) as worker:
                await prometheus.until("sum(unbroken_gateway_processes)", 1)
                assert (await readers.ask(question("Leave", 900), leave_after=5)).tokens
                await until(lambda: stack.sql(SUSPENDED) == [(1,)], seconds=30)
                asked = asyncio.create_task(readers.ask_many(4, "Seen", TOKENS))
                await until(lambda: stack.sql(FAILING) != [(0,)], seconds=30)
                a.kill()
                assert all(one.is_whole for one in await asked)
                await prometheus.until("sum(unbroken_session_ends_total)", 5)
                await prometheus.until("sum(unbroken_connections_ended_total)", 5)
                worker.settle()
                # Read from the database every ten seconds.
                await prometheus.until("max(unbroken_billing_differing_sessions)", 0)
                await prometheus.until("max(unbroken_unsettled_sessions)", 0)
                # One rate of it takes two scrapes.
                seen_twice = "min(count_over_time(unbroken_task_failures_total[1m])) > bool 1"
                await prometheus.until(seen_twice, 1)
            assert await prometheus.value('up{job="unbroken"}') == 1
            empty = set()
            for where, expression in panel_expressions():
                if not await prometheus.query(expression):
                    empty.add(where)
            assert empty <= MAY_BE_EMPTY
            for rule in rules():
                await prometheus.query(rule["expr"])
            groups = await prometheus.groups()
            assert len(groups) > 10
            for group in groups:
                assert {rule.get("lastError", "") for rule in group["rules"]} == {""}
            assert await prometheus.value('unbroken:objective:budget{objective="seam"}') == 0.05
            # The node that was killed is pending, at least; nobody was cut off, nobody is charged wrongly.
            down = 'count(ALERTS{alertname="NodeIsDown",node="a"})'
            await prometheus.until(down, 1)
            quiet = 'ALERTS{alertname=~"BillingDiffers|NoGatewayIsReady|AnswersAreNotFinished"}'
            assert await prometheus.query(quiet) == []
