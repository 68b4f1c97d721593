"""What is concluded from what was read: no machine, no server, no network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.core import checks

from gateway_project.doctor import (
    address,
    answer,
    configuration,
    gateways,
    machine,
    nodes,
    pace,
    path,
    postgres,
    redis_server,
    tables,
    tasks,
)
from gateway_project.doctor.certificates import DAY, Certificate, judge_certificate
from gateway_project.doctor.clocks import difference, offset_of_date
from gateway_project.doctor.finding import Finding, Level
from gateway_project.doctor.public import Course
from streaming.core.nodes import NodeOptions
from streaming.engines.base import Capabilities, NodeReport
from streaming.runtime.sweepers import SWEEP

OK, NOTE, WARNING, FAILURE = Level


def levels(findings: Any) -> dict[str, Level]:
    """The worst of each check."""
    order = list(Level)
    found: dict[str, Level] = {}
    for one in findings:
        found[one.check] = max(found.get(one.check, OK), one.level, key=order.index)
    return found


def level(finding: Finding) -> Level:
    assert finding.level is OK or finding.advice, finding
    return finding.level


# --- the machine


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [(1024, 4096, FAILURE), (1024, 65535, NOTE), (65535, 65535, OK), (-1, -1, OK)],
)
def test_descriptors(soft, hard, wanted):
    assert levels(machine.judge_files(soft, hard, [])) == {"descriptors": wanted}


@pytest.mark.parametrize(
    ("files", "limit", "wanted"),
    [(10, 65535, OK), (10, 1024, WARNING), (1000, 1024, FAILURE), (10, -1, OK)],
)
def test_descriptors_in_use(files, limit, wanted):
    found = levels(machine.judge_files(-1, -1, [machine.Process(7, files, limit)]))
    assert found["descriptors in use"] is wanted


def test_kernels():
    good = machine.Kernel(
        somaxconn=32768, tw_reuse=1, fin_timeout=30, ports=(10240, 65535), time_wait=100,
        entropy=256, clock_kept=True,
    )  # fmt: skip
    assert set(levels(machine.judge_kernel(good)).values()) == {OK}
    for change, check in (
        ({"somaxconn": 4096}, "somaxconn"),
        ({"tw_reuse": 2}, "tcp_tw_reuse"),
        ({"fin_timeout": 60}, "tcp_fin_timeout"),
        ({"ports": (60000, 65535)}, "local ports"),
        ({"time_wait": 28_001}, "TIME_WAIT"),
        ({"entropy": 12}, "entropy"),
    ):
        assert levels(machine.judge_kernel(replace(good, **change)))[check] is WARNING
    few = replace(good, ports=(60000, 65535), time_wait=5500)
    assert levels(machine.judge_kernel(few))["TIME_WAIT"] is WARNING
    assert levels(machine.judge_kernel(replace(good, clock_kept=False)))["clock"] is NOTE
    assert levels(machine.judge_kernel(machine.Kernel())) == {"kernel": NOTE}


def test_memory_and_disk():
    assert level(machine.judge_memory(100, 50)) is OK
    assert level(machine.judge_memory(100, 5)) is WARNING
    assert level(machine.judge_disk(1 << 40, 6 << 30)) is OK
    assert level(machine.judge_disk(1 << 34, 1 << 29)) is WARNING


def test_containers():
    good = machine.Container(
        memory_limit=4 << 30, memory_used=1 << 30, pids_limit=1000, pids_used=10, cpus=2.0
    )
    assert set(levels(machine.judge_container(good)).values()) == {OK}
    assert levels(machine.judge_container(machine.Container())) == {}
    for change, check, wanted in (
        ({"memory_limit": 1 << 29}, "container memory", WARNING),
        ({"memory_used": 3900 << 20}, "container memory", WARNING),
        ({"oom_kills": 1}, "container memory", FAILURE),
        ({"pids_used": 950}, "container processes", WARNING),
        ({"cpus": 0.5}, "container processors", WARNING),
    ):
        assert levels(machine.judge_container(replace(good, **change)))[check] is wanted


# --- the settings


def test_messages_of_system_checks():
    for message, wanted in (
        (checks.Error("broken", id="streaming.E003"), FAILURE),
        (checks.Warning("doubtful", id="streaming.W010"), WARNING),
        (checks.Warning("no redirect. More words.", id="security.W008"), NOTE),
        (checks.Info("fyi", id="x.I001"), NOTE),
    ):
        assert level(configuration.judge_message(message)) is wanted
    cookies = configuration.judge_message(
        checks.Warning("Not secure. Because …", id="security.W012")
    )
    assert "HTTPS_ONLY" in cookies.advice


def test_misspelled_variables():
    known = configuration.known_variables()
    assert {"DATABASE_URL", "SHUTDOWN_GRACE", "AUDIT_KEY", "ALLOWED_HOSTS"} <= known
    environment = {"SHUTDOWN_GRASE": "5", "ALLOWED_HOST": "x", "PATH": "/bin", "DATABASE_URL": "…"}
    found = list(configuration.judge_variables(environment, known))
    assert {one.seen.split()[0] for one in found} == {"SHUTDOWN_GRASE", "ALLOWED_HOST"}
    assert "SHUTDOWN_GRACE" in found[1].advice
    usual = {
        "HOME": "",
        "LANG": "",
        "KUBERNETES_PORT": "",
        "REDIS_PORT": "",
        "HOSTNAME": "",
        "SHLVL": "",
    }
    assert levels(configuration.judge_variables(usual, known)) == {"environment": OK}


def test_hosts_debug_and_grace():
    assert level(configuration.judge_hosts(["*"], None)) is WARNING
    assert level(configuration.judge_hosts(["localhost"], "gateway.example")) is FAILURE
    assert level(configuration.judge_hosts([".example"], "gateway.example")) is OK
    assert level(configuration.judge_hosts(["localhost"], None)) is NOTE
    assert levels(configuration.judge_debug(True, True)) == {"DEBUG": FAILURE, "DEMO": FAILURE}
    assert level(configuration.judge_grace(5, 22)) is WARNING
    assert level(configuration.judge_grace(120, 22)) is NOTE


# --- PostgreSQL


SERVER = postgres.Server(
    version=160004,
    round_trip=0.0003,
    commit=0.0005,
    settings={
        "synchronous_commit": "on", "fsync": "on", "full_page_writes": "on", "autovacuum": "on",
        "idle_in_transaction_session_timeout": "5min", "statement_timeout": "0", "max_connections": "200",
        "superuser_reserved_connections": "3", "synchronous_standby_names": "FIRST 1 (b)",
    },
    clock_offset=0.001,
    connections=10,
    veiled_connections=0,
    oldest_transaction=1.0,
    in_recovery=False,
    transaction_age=1000,
    standbys=(postgres.Standby("b", "sync", 0.01),),
)  # fmt: skip


def test_a_good_server():
    assert set(levels(postgres.judge_server(SERVER, is_remote=True)).values()) == {OK}


@pytest.mark.parametrize(
    ("change", "check", "wanted"),
    [
        ({"version": 130001}, "version", FAILURE),
        ({"in_recovery": True, "commit": None}, "writable", FAILURE),
        ({"round_trip": 0.02}, "round trip", WARNING),
        ({"commit": 0.01}, "commit time", NOTE),
        ({"commit": 0.05}, "commit time", WARNING),
        ({"clock_offset": -1.0}, "clock", WARNING),
        ({"clock_offset": 9.0}, "clock", FAILURE),
        ({"oldest_transaction": 7200.0}, "long transactions", WARNING),
        ({"oldest_transaction": 7200.0, "veiled_connections": 4}, "long transactions", WARNING),
        ({"veiled_connections": 4}, "long transactions", NOTE),
        ({"transaction_age": 1_500_000_000}, "autovacuum", FAILURE),
        ({"standbys": ()}, "standbys", FAILURE),
        ({"settings": {"synchronous_standby_names": ""}}, "standbys", NOTE),
        ({"settings": {"synchronous_standby_names": ""}, "standbys": ()}, "standbys", NOTE),
        ({"settings": {"synchronous_commit": "off"}}, "synchronous_commit", FAILURE),
        ({"settings": {"synchronous_commit": "local"}}, "synchronous_commit", WARNING),
        ({"settings": {"fsync": "off"}}, "fsync", FAILURE),
        ({"settings": {"full_page_writes": "off"}}, "full_page_writes", FAILURE),
        ({"settings": {"statement_timeout": "5s"}}, "statement_timeout", WARNING),
        ({"settings": {"idle_in_transaction_session_timeout": "0"}}, "idle transactions", NOTE),
        ({"settings": {"autovacuum": "off"}}, "autovacuum", FAILURE),
    ],
)
def test_servers(change, check, wanted):
    change = {**change}
    if "settings" in change:
        change["settings"] = {**SERVER.settings, **change["settings"]}
    found = levels(postgres.judge_server(replace(SERVER, **change), is_remote=False))
    assert found.pop(check) is wanted
    assert set(found.values()) == {OK}


def test_connections():
    database = {"OPTIONS": {"pool": {"max_size": 8}}}
    assert level(postgres.judge_connections(SERVER, database, 4)) is OK
    assert level(postgres.judge_connections(SERVER, database, 12)) is WARNING
    assert (
        level(postgres.judge_connections(replace(SERVER, connections=190), database, 1)) is FAILURE
    )
    assert level(postgres.judge_direct(pooled=True, is_same=True)) is FAILURE
    assert level(postgres.judge_direct(pooled=False, is_same=False)) is FAILURE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("500ms", 0.5), ("5s", 5.0), ("5min", 300.0), ("1500", 1.5), ("1d", 86400.0)],
)
def test_durations(text, seconds):
    assert postgres.parsed_duration(text) == pytest.approx(seconds)


def test_tables():
    assert level(tables.judge_migrations(["streaming.0009_x"])) is FAILURE
    assert level(tables.judge_guards([("billing_ledgerentry", "append_only")])) is FAILURE
    assert levels(tables.judge_partitions(["checkpoints_20990101"], ["checkpoints_20000101"])) == {
        "partitions": WARNING, "old partitions": WARNING,
    }  # fmt: skip
    assert levels(tables.judge_bloat([("streaming_x", 1, 200_000)])) == {"dead rows": NOTE}


# --- gateways, Redis, tasks


def test_instances():
    live = [gateways.Instance(1, "a", 0.4, 1.0), gateways.Instance(2, "b", 0.9, 1.0)]
    assert levels(gateways.judge_instances(live)) == {"heartbeats": OK}
    assert levels(gateways.judge_instances([])) == {"heartbeats": FAILURE}
    one = [live[0], gateways.Instance(3, "c", 600.0, None)]
    assert levels(gateways.judge_instances(one)) == {
        "heartbeats": OK,
        "spare": NOTE,
        "crashes": NOTE,
    }
    deaf = [live[0], gateways.Instance(4, "d", 0.1, 90.0)]
    assert levels(gateways.judge_instances(deaf))["node table"] is WARNING
    assert level(gateways.judge_deserted(2)) is FAILURE
    assert level(gateways.judge_settlement(90.0, 4)) is WARNING
    assert levels(gateways.judge_incidents([("sweeper_silent", "celery", 60.0)])) == {
        "incidents": WARNING
    }


def test_redis():
    trap = {"default": {"CONFIG": {"hosts": ["redis://r"]}}}
    right = {"default": {"CONFIG": {"hosts": [{"address": "redis://r", "socket_timeout": None}]}}}
    assert level(redis_server.judge_socket_timeout(trap, "8.1.0")) is FAILURE
    assert level(redis_server.judge_socket_timeout(trap, "7.4.0")) is OK
    assert level(redis_server.judge_socket_timeout(right, "8.1.0")) is OK
    info: dict[str, Any] = {
        "maxmemory_policy": "noeviction",
        "redis_version": "8.0",
        "role": "master",
    }
    server = redis_server.Server(round_trip=0.001, clock_offset=0.0, info=info)
    assert set(levels(redis_server.judge_server(server)).values()) == {OK}
    for change, check, wanted in (
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy", WARNING),
        ({"evicted_keys": 5}, "evictions", WARNING),
        ({"maxmemory": 100, "used_memory": 95}, "memory", WARNING),
        ({"role": "slave"}, "writable", FAILURE),
        ({"aof_enabled": 1}, "persistence", NOTE),
    ):
        found = levels(redis_server.judge_server(replace(server, info={**info, **change})))
        assert found[check] is wanted


def test_tasks():
    sweep = tasks.Run(SWEEP, 1.0, "")
    assert level(tasks.judge_workers([])) is FAILURE
    assert level(tasks.judge_queue(5000)) is WARNING
    assert level(tasks.judge_beat({SWEEP: sweep}, 0, has_worker=True)) is OK
    old = {SWEEP: replace(sweep, age=90.0)}
    assert "beat asks for nothing" in tasks.judge_beat(old, 0, has_worker=True).seen
    assert level(tasks.judge_beat({}, None, has_worker=False)) is FAILURE
    runs = [
        sweep,
        tasks.Run("settle_sessions", 300.0, ""),
        tasks.Run("deliver_webhooks", 1.0, "OSError: x"),
    ]
    every = {SWEEP: 2.0, "settle_sessions": 1.0, "deliver_webhooks": 3.0}
    assert levels(tasks.judge_runs(runs, every)) == {"tasks": WARNING}
    assert len(list(tasks.judge_runs(runs, every))) == 2
    assert levels(tasks.judge_runs([sweep], every)) == {"tasks": OK}


# --- nodes


def node(
    name: str, *, ids: tuple[int, ...] = (1, 2), size: int | None = 8192, **fields: Any
) -> nodes.Answer:
    can = Capabilities(token_ids=True, abort=True, figures=True, prefix_caching=True)
    target = nodes.Target(name, "vllm", f"http://{name}", fields.pop("options", NodeOptions()))
    report = NodeReport({"m": size}, fields.pop("can", can))
    return nodes.Answer(target, report=report, prompts={"m": ids}, **fields)


def test_nodes_of_one_model():
    assert levels(nodes.judge_models([node("a"), node("b")])) == {"m": OK}
    assert levels(nodes.judge_models([node("a")])) == {"m": WARNING}
    others = list(nodes.judge_models([node("a"), node("b"), node("c", ids=(1, 3))]))
    assert levels(others) == {"m": FAILURE}
    assert "a, b | c" in others[0].seen
    assert levels(nodes.judge_models([node("a"), node("b", size=4096)])) == {"m": WARNING}
    assert levels(nodes.judge_models([node("a", build="1"), node("b", build="2")])) == {"m": NOTE}
    assert levels(nodes.judge_aliases([("chat", "gone")], {"m"})) == {"aliases": WARNING}


def test_single_nodes():
    assert levels(nodes.judge_node(node("a"))) == {"a": OK}
    dumb = node("a", can=Capabilities(token_ids=False))
    assert levels(nodes.judge_node(dumb)) == {"a": FAILURE}
    by_text = NodeOptions(continuation="text", template="chatml")
    assert levels(
        nodes.judge_node(node("a", can=Capabilities(token_ids=False), options=by_text))
    ) == {"a": NOTE}
    assert levels(nodes.judge_node(nodes.Answer(node("a").target, trouble="refused"))) == {
        "a": FAILURE
    }
    away = replace(node("a").target, takes_work=False)
    assert levels(nodes.judge_node(nodes.Answer(away, trouble="refused"))) == {"a": NOTE}
    assert levels(nodes.judge_node(node("a", clock_offset=-0.2))) == {"a": OK}
    assert levels(nodes.judge_node(node("a", clock_offset=3.0))) == {"a": WARNING}
    assert levels(nodes.judge_node(node("a", clock_offset=3600.0))) == {"a": FAILURE}
    missing = nodes.Target("a", "vllm", "http://a", NodeOptions(credential="env:NO_SUCH_KEY"))
    assert levels(nodes.judge_credentials([missing])) == {"a": FAILURE}


def test_certificates():
    good = Certificate(left=60 * DAY, protocol="TLSv1.3", alpn="h2")
    assert level(judge_certificate("TLS", good)) is OK
    assert level(judge_certificate("TLS", replace(good, left=3 * DAY))) is WARNING
    assert level(judge_certificate("TLS", replace(good, protocol="TLSv1.1"))) is FAILURE
    assert (
        level(judge_certificate("TLS", Certificate(trouble="self-signed certificate"))) is FAILURE
    )
    assert level(address.judge_alpn("http/1.1")) is NOTE


def test_clocks():
    assert difference(100.0, 99.9, 100.1) == 0.0
    assert difference(103.0, 99.0, 100.0) == 3.0
    assert difference(90.0, 99.0, 100.0) == -9.0
    assert difference(98.5, 99.0, 100.0, step=1.0) == 0.0
    minute = "Thu, 01 Jan 1970 00:01:00 GMT"
    assert offset_of_date(minute, 60.9, 61.5) == 0.0
    assert offset_of_date(minute, 50.0, 50.5) == 9.5
    assert offset_of_date(minute, 70.0, 70.5) == -9.0
    assert offset_of_date("yesterday", 0.0) is None
    assert offset_of_date(None, 0.0) is None


# --- the way


def course(
    wanted: float, *, over: float | None = None, whole: bool = True, **fields: Any
) -> Course:
    return Course(
        wanted,
        **{
            "status": 200,
            "whole": whole,
            "over": wanted if whole else over,
            "opened": {},
            **fields,
        },
    )


def test_pace():
    prompt = [(n / 10, n / 10 + 0.02) for n in range(1, 21)]
    assert pace.held(prompt) == pytest.approx(0.0, abs=1e-9)
    assert pace.lumps(prompt) == 20
    at_once = [(sent, 2.1) for sent, _ in prompt]
    assert pace.held(at_once) == pytest.approx(1.9)
    assert pace.lumps(at_once) == 1
    assert level(pace.judge_buffering(course(2, arrivals=prompt))) is OK
    assert level(pace.judge_buffering(course(2, arrivals=at_once))) is FAILURE
    some = [(sent, at + (0.4 if number == 7 else 0)) for number, (sent, at) in enumerate(prompt)]
    assert level(pace.judge_buffering(course(2, arrivals=some))) is WARNING
    assert level(pace.judge_buffering(course(2))) is FAILURE


def cuts(silent: list[Course], busy: Course) -> dict[str, Level]:
    return levels(pace.judge_cuts(silent, busy, silence=22, longest_answer=3600))


def test_cuts():
    busy = course(100)
    silent = [course(12), course(25), course(50), course(100)]
    assert cuts(silent, busy) == {"total cut-off": OK, "idle cut-off": OK}
    at_60 = [*silent[:3], course(100, whole=False, over=60.2)]
    assert cuts(at_60, busy) == {"total cut-off": OK, "idle cut-off": NOTE}
    at_20 = [silent[0], *(course(n, whole=False, over=20.0) for n in (25, 50, 100))]
    assert cuts(at_20, busy) == {"total cut-off": OK, "idle cut-off": FAILURE}
    cut = course(100, whole=False, over=30.0)
    all_at_30 = [
        *silent[:2],
        course(50, whole=False, over=30.1),
        course(100, whole=False, over=30.0),
    ]
    assert cuts(all_at_30, cut) == {"total cut-off": FAILURE, "idle cut-off": OK}
    both = [silent[0], *(course(n, whole=False, over=20.0) for n in (25, 50, 100))]
    assert cuts(both, cut) == {"total cut-off": FAILURE, "idle cut-off": FAILURE}
    lost = [*silent[:3], course(100, whole=False)]
    assert cuts(lost, busy) == {"total cut-off": OK, "idle cut-off": FAILURE}
    unopened = course(100, whole=False, status=503, opened=None)
    assert cuts(silent, unopened) == {"cut-off": WARNING}
    assert cuts([*silent[:3], unopened], busy)["idle cut-off"] is OK
    assert cuts(silent, course(100, whole=False, stopped=True)) == {"cut-off": NOTE}


def test_headers_whom_and_disconnects():
    told = {
        "x-session-id": "1",
        "x-request-id": "2",
        "x-server-time": "3",
        "cache-control": "no-cache, no-transform",
    }
    assert levels(pace.judge_response_headers(told)) == {
        "response headers": OK,
        "X-Accel-Buffering": NOTE,
    }
    assert levels(pace.judge_response_headers({}))["response headers"] is FAILURE
    assert level(pace.judge_request_headers({"last-event-id": "7"}, {"last-event-id": "7"})) is OK
    assert (
        "changed" in pace.judge_request_headers({"last-event-id": "7"}, {"last-event-id": "8"}).seen
    )
    seen = {"scheme": "http", "client": "10.0.0.1"}
    assert level(pace.judge_whom(seen, is_https=True, is_local=False)) is WARNING
    assert level(pace.judge_whom(seen, is_https=False, is_local=False)) is OK
    own = {"scheme": "https", "client": "127.0.0.1"}
    assert level(pace.judge_whom(own, is_https=True, is_local=False)) is WARNING
    assert level(pace.judge_disconnect("left", 1.0, 0.8)) is OK
    assert level(pace.judge_disconnect("left", 9.0, 0.8)) is WARNING
    assert level(pace.judge_disconnect("running", None, 0.8)) is FAILURE
    assert level(pace.judge_disconnect("unknown", None, 0.8)) is NOTE
    assert level(pace.judge_spread({1: 20}, 2)) is WARNING
    assert level(pace.judge_spread({1: 20}, 1)) is OK


def test_answers():
    whole = answer.Reading([(1, "a"), (2, "b"), (3, "c")], {"state": "completed"})
    first, rest = answer.Reading([(1, "a")]), answer.Reading([(2, "b"), (3, "c")], whole.end)
    assert set(levels(answer.judge("m", first, rest, whole)).values()) == {OK}
    doubled = answer.Reading([(1, "a"), (2, "b"), (3, "c")], whole.end)
    assert levels(answer.judge("m", first, doubled, whole))["resume"] is FAILURE
    failed = answer.Reading([], {"error": {"message": "no node"}})
    assert levels(answer.judge("m", failed, failed, failed)) == {"answer": FAILURE}


def test_answers_of_the_address():
    assert level(address.judge_health(200, b'{"status":"ok"}', is_api=True)) is OK
    assert level(address.judge_health(403, b"", is_api=True)) is NOTE
    for status, body in ((200, b"<html>"), (301, b""), (502, b""), (404, b"")):
        assert level(address.judge_health(status, body, is_api=False)) is FAILURE
    assert (
        level(address.judge_ready(200, {}, b'{"status":"degraded","reasons":["redis: gone"]}'))
        is WARNING
    )
    assert level(address.judge_ready(503, {}, b'{"status":"unavailable","reasons":[]}')) is FAILURE
    assert level(address.judge_ready(404, {}, b"")) is NOTE
    assert level(address.judge_metrics(200, is_local=False)) is FAILURE
    assert level(address.judge_journal(0.01)) is OK
    assert level(address.judge_journal(1.0)) is WARNING
    assert level(address.judge_journal(9.0)) is FAILURE
    assert level(address.judge_redirect(301, "https://x/")) is OK
    assert level(address.judge_redirect(200, "")) is WARNING
    page = "https://shop.example"
    assert level(address.judge_preflight(page, 204, {"access-control-allow-origin": page})) is OK
    assert (
        level(address.judge_preflight(page, 204, {"access-control-allow-origin": "*"})) is WARNING
    )
    assert level(address.judge_preflight(page, 403, {})) is FAILURE
    assert level(address.judge_preflight(page, 405, {})) is FAILURE
    assert level(path.judge_body(413, b"<html>", 1 << 20)) is WARNING
    assert level(path.judge_body(400, b'{"error": {}}', 1 << 20)) is OK
