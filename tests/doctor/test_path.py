"""The doctor at the public address of a real gateway, behind proxies that each do one thing wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from gateway_project.doctor import address, path
from gateway_project.doctor.finding import Finding, Level, ok
from gateway_project.doctor.public import Public
from tests.doctor.middlebox import Middlebox
from tests.engine_simulator.process import SimulatorProcess
from tests.stack import Stack

PATIENCE = 6.0
PAGE = "https://shop.example"

WRONG: dict[str, dict[str, Any]] = {
    "nothing": {},
    "holds": {"hold": 1.5},
    "compresses": {"compress": True},
    "cuts silence": {"cut_idle": 2.5},
    "cuts all": {"cut_total": 4.0},
    "no upgrades": {"upgrades": False},
    "strips": {"strip": ("last-event-id", "x-session-id", "cache-control")},
    "small": {"most": 1 << 20},
    "clings": {"clings": True},
    "keyless": {"strip": ("authorization",)},
    "early clock": {"clock": 3600.0},
}

Findings = dict[str, Finding]
ANY = ok("any", "thing")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with (
        SimulatorProcess("vllm", pace=100) as engine,
        Stack(gateways=2, engine_nodes=[f"a=vllm+{engine.url}"]) as stack,
    ):
        yield stack


@pytest.fixture(scope="module")
def found(stack: Stack) -> Iterator[Callable[[str], Findings]]:
    """What is found behind each proxy, by check. Some are looked at side by side."""
    with ExitStack() as ends, ThreadPoolExecutor(4) as threads:
        made = {}
        for name, wrong in WRONG.items():
            box = ends.enter_context(Middlebox(stack.gateway(0).url, **wrong))
            public = Public(url=box.url, key=stack.api_key(), patience=PATIENCE, origin=PAGE)
            made[name] = threads.submit(look, public)
        yield lambda name: made[name].result(120)


def look(public: Public) -> Findings:
    """All that is found by way of an address, by check."""
    return {one.check: one for of in (address.look, path.look) for one in of(public)}


def bad(findings: Findings) -> set[str]:
    """What is wrong with the way, but for what a busy machine makes slow.

    And for pages that no tenant allows: see below.
    """
    wrong = {one.check for one in findings.values() if one.level in (Level.WARNING, Level.FAILURE)}
    slow = {"buffering"}
    if findings.get("disconnect", ANY).level is Level.WARNING:
        slow.add("disconnect")
    return wrong - slow - {"origin"}


def test_a_proxy_that_does_nothing_wrong(found):
    findings = found("nothing")
    assert bad(findings) == set(), findings
    for check in (
        "compression", "total cut-off", "idle cut-off", "request size",
        "WebSocket", "WebSocket messages", "answer", "resume", "long polling", "keep-alive", "clock",
    ):  # fmt: skip
        assert findings[check].level is Level.OK, findings[check]


def test_buffering(found):
    findings = found("holds")
    assert findings["buffering"].level is Level.FAILURE
    assert "proxy_buffering off" in findings["buffering"].advice


def test_compression(found):
    findings = found("compresses")
    assert bad(findings) == {"compression"}, findings
    assert "gzip" in findings["compression"].seen


def test_the_idle_limit_is_told_from_the_total_limit(found):
    silence, total = found("cuts silence"), found("cuts all")
    assert silence["total cut-off"].level is Level.OK
    assert silence["idle cut-off"].level is Level.FAILURE
    assert seconds(silence["idle cut-off"]) > 1.5
    assert total["total cut-off"].level is Level.FAILURE
    assert seconds(total["total cut-off"]) > 3.0
    assert total["idle cut-off"].level is not Level.FAILURE


def seconds(finding: Finding) -> float:
    """The figure in "cut after 1.5 s"."""
    told = re.search(r"after ([\d.]+) s", finding.seen)
    assert told, finding
    return float(told[1])


def test_refused_upgrades(found):
    findings = found("no upgrades")
    assert bad(findings) == {"WebSocket", "WebSocket messages"}, findings
    assert "HTTP 400" in findings["WebSocket"].seen


def test_headers_that_are_taken_out(found):
    findings = found("strips")
    assert "x-session-id" in findings["response headers"].seen
    assert findings["response headers"].level is Level.FAILURE
    assert "last-event-id (gone)" in findings["request headers"].seen
    assert findings["cache-control"].level is Level.WARNING


def test_small_requests(found):
    findings = found("small")
    assert bad(findings) == {"request size"}, findings
    assert "413" in findings["request size"].seen


def test_a_proxy_that_clings_to_the_gateway(found):
    findings = found("clings")
    assert findings["disconnect"].level is Level.FAILURE


def test_a_key_that_does_not_arrive(found):
    findings = found("keyless")
    assert "API key" in bad(findings)
    assert "buffering" not in findings


def test_another_clock(found):
    findings = found("early clock")
    assert findings["clock"].level is Level.FAILURE
    assert "ahead" in findings["clock"].seen


def test_pages_that_no_tenant_allows(found):
    assert found("nothing")["origin"].level is Level.FAILURE


def test_without_a_key_it_says_what_is_left_out(stack):
    public = Public(url=stack.gateway(0).url)
    (finding,) = path.look(public)
    assert finding.level is Level.NOTE
    assert "UNBROKEN_API_KEY" in finding.seen
    assert {one.level for one in address.look(public)} == {Level.OK}


def test_nobody_there():
    public = Public(url="http://127.0.0.1:9", key="ub-live-none")
    findings = look(public)
    assert bad(findings) == {"reachable", "API key"}
