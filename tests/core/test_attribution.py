"""What lay behind an interruption: the table of rules, case by case and as a whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.core.attribution import (
    NO_INTERRUPTIONS,
    RULES,
    Blame,
    Evidence,
    Probe,
    attribute,
    attribute_end,
)
from streaming.core.failures import Cause

ISSUED = (
    "engine_oom, engine_ecc, engine_crash, engine_frozen, engine_overload, network_reset,"
    " network_partition, gateway_crash, gateway_shutdown, client_gone, client_stop, timeout,"
    " content_violation, rate_limit, unknown"
)
BREAKS = [Cause.RESET, Cause.CLOSED, Cause.REFUSED]
SILENCES = [Cause.STALLED, Cause.NO_FIRST_TOKEN]
ERRORS = [Cause.ENGINE_ERROR, Cause.ABORTED, Cause.MALFORMED]


def blame(seen: Cause, **evidence) -> str:
    found = attribute(Evidence(seen=seen, **evidence))
    assert found is not None
    return found[0].value


def test_the_causes_are_those_that_were_agreed():
    assert {cause.value for cause in Blame} == set(ISSUED.split(", "))


def test_the_causes_are_those_that_are_documented():
    table = (Path(__file__).parents[2] / "docs/interruptions.md").read_text().split("##")[0]
    rows = "\n".join(line.split("|")[1] for line in table.split("\n") if line.startswith("| `"))
    assert re.findall(r"`(\w+)`", rows) == ISSUED.split(", ")


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "engine_oom"),
        ("torch.OutOfMemoryError: HIP out of memory", "engine_oom"),
        ("ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed", "engine_oom"),
        ("CUDA error: uncorrectable ECC error encountered", "engine_ecc"),
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid=1", "engine_ecc"),
        ("EngineDeadError: EngineCore encountered an issue. See stack trace", "engine_crash"),
        ("CUDA error: an illegal memory access was encountered", "engine_crash"),
        ("RuntimeError: NCCL communicator was aborted", "engine_crash"),
        ("QueueOverflowError: too many queued requests", "engine_overload"),
        ("Model is overloaded", "engine_overload"),
        ("no slot available", "engine_overload"),
        ("The response was filtered: content_filter", "content_violation"),
        ("violates our content policy", "content_violation"),
        ("The server had an error while processing your request.", "engine_crash"),
        ("", "engine_crash"),
    ],
)
@pytest.mark.parametrize("seen", ERRORS)
def test_what_the_engine_said(seen, words, cause):
    assert blame(seen, said=words) == cause
    assert blame(seen, said=words, probe=Probe.UP) == cause


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (500, "engine_crash"), (502, "engine_crash"), (504, "timeout"), (408, "timeout"),
        (425, "engine_overload"), (429, "rate_limit"), (401, "unknown"), (403, "unknown"),
        (404, "unknown"), (307, "unknown"),
    ],
)  # fmt: skip
def test_statuses(status, cause):
    assert blame(Cause.BAD_STATUS, status=status) == cause


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        ({"status": 429}, "rate_limit"),
        ({"status": 429, "said": "Too Many Requests"}, "rate_limit"),
        ({"status": 429, "said": "Model is overloaded"}, "engine_overload"),
        ({"status": 503}, "engine_overload"),
        ({"status": 503, "said": "Loading model"}, "engine_overload"),
        ({"status": 503, "probe": Probe.REFUSED}, "engine_overload"),
        ({"status": 503, "oom_killed": True}, "engine_overload"),
        ({"status": 503, "said": "EngineDeadError"}, "engine_crash"),
    ],
)
def test_a_node_that_wants_no_work(evidence, cause):
    assert blame(Cause.BUSY, **evidence) == cause


@pytest.mark.parametrize("seen", [*BREAKS, *SILENCES, *ERRORS])
@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        ({"oom_killed": True, "exit_code": 137, "pod_restarts": 1}, "engine_oom"),
        ({"exit_code": 137, "pod_restarts": 1}, "engine_crash"),
        ({"pod_gone": True}, "engine_crash"),
        ({"xids": frozenset({48})}, "engine_ecc"),
        ({"xids": frozenset({79})}, "engine_crash"),
        ({"xids": frozenset({31, 94})}, "engine_ecc"),
        ({"ecc_errors": 2, "oom_killed": True}, "engine_ecc"),
        ({"restarted": True, "probe": Probe.UP}, "engine_crash"),
        ({"probe": Probe.REFUSED}, "engine_crash"),
    ],
)
def test_what_sees_the_engine_from_outside_is_believed_first(seen, evidence, cause):
    assert blame(seen, **evidence) == cause


@pytest.mark.parametrize(
    ("seen", "evidence", "cause"),
    [
        # A connection that broke
        (Cause.RESET, {}, "network_reset"),
        (Cause.RESET, {"probe": Probe.UP}, "network_reset"),
        (Cause.CLOSED, {"probe": Probe.UP}, "network_reset"),
        (Cause.CLOSED, {}, "engine_crash"),
        (Cause.REFUSED, {}, "engine_crash"),
        (Cause.RESET, {"probe": Probe.NO_ANSWER}, "engine_crash"),
        (Cause.RESET, {"probe": Probe.ERROR}, "engine_crash"),
        (Cause.RESET, {"siblings_failed": 9, "siblings_alive": 0}, "engine_crash"),
        (Cause.RESET, {"siblings_failed": 9, "siblings_alive": 4}, "network_reset"),
        (Cause.RESET, {"siblings_failed": 9, "siblings_alive": 0, "probe": Probe.UP}, "network_reset"),
        (Cause.RESET, {"siblings_failed": 9, "siblings_alive": 0, "nodes_failed": 1}, "network_partition"),
        (Cause.RESET, {"nodes_failed": 1, "probe": Probe.REFUSED}, "engine_crash"),
        (Cause.RESET, {"errno": "ETIMEDOUT"}, "network_partition"),
        (Cause.RESET, {"errno": "ECONNRESET"}, "network_reset"),
        (Cause.RESET, {"probe": Probe.UNREACHABLE}, "network_partition"),
        (Cause.REFUSED, {"said": "Connection timeout to host http://a:8000"}, "network_partition"),
        (Cause.REFUSED, {"said": "Connection timeout to host http://a:8000", "probe": Probe.UP}, "engine_overload"),
        # Silence
        (Cause.STALLED, {}, "engine_frozen"),
        (Cause.STALLED, {"probe": Probe.UP}, "engine_frozen"),
        (Cause.STALLED, {"probe": Probe.NO_ANSWER}, "engine_frozen"),
        (Cause.STALLED, {"probe": Probe.NO_ANSWER, "siblings_failed": 9, "siblings_alive": 0}, "engine_frozen"),
        (Cause.STALLED, {"probe": Probe.UNREACHABLE}, "network_partition"),
        (Cause.STALLED, {"unanswered": 2, "silence": 6.0}, "network_partition"),
        (Cause.STALLED, {"unanswered": 0, "silence": 6.0, "probe": Probe.UNREACHABLE}, "engine_frozen"),
        (Cause.STALLED, {"unanswered": 1, "silence": 3.0}, "engine_frozen"),
        (Cause.STALLED, {"nodes_failed": 2}, "network_partition"),
        (Cause.STALLED, {"nodes_failed": 2, "probe": Probe.NO_ANSWER}, "engine_frozen"),
        (Cause.STALLED, {"probe": Probe.UP, "siblings_alive": 3}, "timeout"),
        (Cause.NO_FIRST_TOKEN, {"probe": Probe.UP, "progressed": True}, "timeout"),
        (Cause.NO_FIRST_TOKEN, {"probe": Probe.UP, "progressed": True, "waiting": 12}, "engine_overload"),
        (Cause.NO_FIRST_TOKEN, {"probe": Probe.UP, "progressed": False, "waiting": 12}, "engine_frozen"),
        # Neither
        (Cause.MISMATCH, {"probe": Probe.REFUSED}, "unknown"),
        (Cause.BAD_STATUS, {"status": 401, "restarted": True}, "unknown"),
    ],
)  # fmt: skip
def test_how_the_stream_ended(seen, evidence, cause):
    assert blame(seen, **evidence) == cause


@pytest.mark.parametrize("seen", sorted(NO_INTERRUPTIONS, key=str))
def test_what_was_wanted_is_no_interruption(seen):
    assert attribute(Evidence(seen=seen, probe=Probe.REFUSED, oom_killed=True)) is None


COUNTS = st.integers(0, 20)
EVIDENCE = st.builds(
    Evidence,
    seen=st.sampled_from(list(Cause)),
    said=st.sampled_from(["", "CUDA out of memory", "EngineDeadError", "queue full", "odd"]) | st.text(),
    status=st.none() | st.sampled_from([200, 302, 401, 404, 408, 425, 429, 500, 503, 504]),
    errno=st.none() | st.sampled_from(["ECONNRESET", "ETIMEDOUT", "EHOSTUNREACH"]),
    unanswered=st.none() | COUNTS,
    silence=st.floats(0, 60),
    siblings_failed=COUNTS,
    siblings_alive=st.none() | COUNTS,
    nodes_failed=COUNTS,
    probe=st.sampled_from(Probe),
    restarted=st.booleans(),
    progressed=st.none() | st.booleans(),
    waiting=st.none() | COUNTS,
    xids=st.frozensets(st.sampled_from([13, 31, 48, 79, 94])),
    ecc_errors=st.integers(0, 2),
    oom_killed=st.booleans(),
    exit_code=st.none() | st.sampled_from([0, 1, 137]),
    pod_restarts=st.integers(0, 2),
    pod_gone=st.booleans(),
)  # fmt: skip


@given(EVIDENCE)
def test_every_interruption_has_one_cause_with_its_reason(evidence):
    found = attribute(evidence)
    assert (found is None) == (evidence.seen in NO_INTERRUPTIONS)
    if found is None:
        return
    cause, stored = found
    rule = next(rule for rule in RULES if rule.because == stored["because"])
    assert rule.blame is cause
    assert stored["seen"] == evidence.seen.value
    assert json.loads(json.dumps(stored)) == stored
    # The gateway and the client are blamed by what the gateway itself did, not by an engine's failure.
    assert not cause.startswith(("gateway_", "client_"))
    if cause is Blame.UNKNOWN:
        assert evidence.seen in (Cause.MISMATCH, Cause.BAD_STATUS)
        assert evidence.seen is Cause.MISMATCH or (evidence.status or 500) < 500


@given(EVIDENCE)
def test_hardware_that_has_failed_is_not_talked_away(evidence):
    if evidence.ecc_errors and evidence.may_be_its_end and evidence.seen not in NO_INTERRUPTIONS:
        assert attribute(evidence)[0] is Blame.ENGINE_ECC


def test_every_rule_can_decide():
    """No rule stands behind one that always decides before it. (The last is for what is yet to come.)"""
    needed = {
        rule.because
        for seen in Cause
        for given_ in [
            {}, {"said": "ECC"}, {"said": "oom"}, {"said": "content filter"}, {"said": "queue full"},
            {"said": "EngineDead"}, {"said": "Connection timeout"}, {"ecc_errors": 1}, {"oom_killed": True},
            {"exit_code": 1}, {"xids": frozenset({79})}, {"restarted": True}, {"status": 404},
            {"said": "Connection timeout", "probe": Probe.UP}, {"status": 408}, {"status": 425},
            {"status": 429}, {"probe": Probe.UP}, {"probe": Probe.REFUSED}, {"probe": Probe.UNREACHABLE},
            {"probe": Probe.NO_ANSWER}, {"probe": Probe.ERROR}, {"unanswered": 2}, {"nodes_failed": 1},
            {"waiting": 1, "progressed": True}, {"progressed": True},
            {"siblings_failed": 1, "siblings_alive": 0},
        ]
        if (found := attribute(Evidence(seen=seen, **given_)))
        for rule in RULES
        if rule.because == found[1]["because"]
    }  # fmt: skip
    assert [rule.because for rule in RULES if rule.because not in needed] == ["Nothing speaks."]


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("client_stop", "client_stop"), ("client_gone", "client_gone"), ("abandoned", "client_gone"),
        ("gateway_crash", "gateway_crash"), ("runner_lost", "gateway_crash"),
        ("gateway_shutdown", "gateway_shutdown"), ("answer_timeout", "timeout"),
        ("no_healthy_node", "timeout"), ("journal_unavailable", "timeout"),
        ("log_corrupt", "gateway_crash"), ("journal_refused", "gateway_crash"),
        ("internal_error", "gateway_crash"), ("rejected_by_engine", "unknown"),
        ("context_length_exceeded", "unknown"), ("engine_oom", "engine_oom"),
    ],
)  # fmt: skip
def test_ends_of_sessions(what, cause):
    found, evidence = attribute_end(what)
    assert found.value == cause
    assert attribute_end(found.value)[0] is found, "what is stored may be asked again"
    assert evidence == {} or evidence["because"]
