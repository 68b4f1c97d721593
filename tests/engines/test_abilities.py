"""What a probe learns of an engine, its figures, and the calls besides generating: on a process."""

from __future__ import annotations

import asyncio

import pytest

from streaming.core.failures import AttemptFailed, Cause
from streaming.core.nodes import NodeOptions
from streaming.engines.base import Capabilities
from tests.durability.reader import until
from tests.engines.client import Asking

BOTH = pytest.mark.parametrize("name", ["vllm", "llamacpp"])


@BOTH
@pytest.mark.parametrize(
    ("flags", "can"),
    [
        ({}, Capabilities(True, False, True, True, False)),
        (
            {"scale_out": True, "dev_mode": True, "slot_save_path": "/tmp"},
            Capabilities(True, True, True, True, True),
        ),
        (
            {"no_prefix_caching": True, "dev_mode": True},
            Capabilities(True, True, True, False, True),
        ),
        ({"text_only": True}, Capabilities(False, False, True, True, False)),
        ({"no_metrics": True, "no_slots": True}, Capabilities(True, False, False, True, False)),
    ],
)
async def test_a_probe_learns_what_the_engine_can_do(start, name, flags, can):
    if name == "llamacpp":
        # It has no abort by id and no developers' calls; it caches unless the node's options forbid.
        can = Capabilities(can.token_ids, False, can.figures, True, "slot_save_path" in flags)
    elif not can.figures:
        can = Capabilities(can.token_ids)  # vLLM says there whether it has a prefix cache
    engine, dialect = start(name, **flags)
    report = await dialect.probe(5)
    assert report.models == {"sim-model": 8192}
    assert report.can == can
    assert report.slots == (4096 if name == "llamacpp" else None)
    assert engine.stats()["started"] == 0


async def test_the_prompt_cache_of_llamacpp_is_as_the_node_says(start):
    _, dialect = start("llamacpp", NodeOptions(prompt_cache="off"))
    assert not (await dialect.probe(5)).can.prefix_caching


@BOTH
async def test_one_token_is_made_to_learn_and_none_by_later_probes(start, name):
    engine, dialect = start(name)
    for _ in range(3):
        await dialect.probe(5)
    assert engine.stats()["pulses"] == 1
    engine.restart()
    engine.set_fault(kind="health_503", times=1)
    with pytest.raises(AttemptFailed):
        await dialect.probe(5)
    await dialect.probe(5)
    await dialect.probe(5)
    assert engine.stats()["pulses"] == 1


async def test_an_engine_that_comes_back_is_learnt_anew(start):
    plain, dialect = start("vllm")
    assert not (await dialect.probe(5)).can.abort
    plain.kill()
    with pytest.raises(AttemptFailed):
        await dialect.probe(5)
    start("vllm", port=plain.port, scale_out=True)
    assert (await dialect.probe(5)).can.abort


@BOTH
async def test_a_frozen_engine_answers_the_probe_but_has_no_pulse(start, name):
    engine, dialect = start(name)
    await dialect.probe(5)
    await dialect.pulse("sim-model", 5)
    engine.set_fault(kind="freeze_engine")
    assert (await dialect.probe(5)).can.figures
    with pytest.raises(AttemptFailed) as caught:
        await dialect.pulse("sim-model", 0.2)
    assert caught.value.cause is Cause.STALLED
    # Nothing of it is left behind.
    await until(lambda: engine.stats()["waiting"] == 0)
    engine.clear_faults()
    await dialect.pulse("sim-model", 5)


async def test_a_first_probe_of_a_frozen_engine_believes_that_it_takes_ids(start):
    engine, dialect = start("vllm")
    engine.set_fault(kind="freeze_engine")
    assert (await dialect.probe(0.6)).can.token_ids


@BOTH
async def test_a_text_only_engine_has_a_pulse(start, name):
    _, dialect = start(name, text_only=True)
    await dialect.probe(5)
    await dialect.pulse("sim-model", 5)


@BOTH
async def test_figures_follow_the_load(start, name):
    engine, dialect = start(name, pace=100, slots=4)
    before = await dialect.figures(5)
    assert (before.running, before.waiting, before.kv_usage) == (0, 0, 0)
    assert before.block_tokens == (16 if name == "vllm" else 1)
    assert before.kv_tokens == (64 if name == "vllm" else 4) * 8192
    async with Asking(dialect):
        during = await dialect.figures(5)
        assert during.running == 1
        assert 0 < during.kv_usage < 0.1
        assert during.progress > before.progress
        assert during.asked_at > before.asked_at
    await until(lambda: engine.stats()["running"] == 0)
    assert (await dialect.figures(5)).running == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [({"no_slots": True}, {"running", "waiting", "progress"}), ({"no_metrics": True}, {"running"})],
)
async def test_llamacpp_tells_what_its_flags_left(start, flags, told):
    _, dialect = start("llamacpp", **flags)
    figures = await dialect.figures(5)
    for name in ("running", "waiting", "progress"):
        assert (getattr(figures, name) is not None) == (name in told)
    assert (figures.kv_usage is not None) == ("no_metrics" in flags)


async def test_figures_that_are_not_there(start):
    _, dialect = start("vllm", no_metrics=True)
    figures = await dialect.figures(5)
    assert (figures.running, figures.kv_usage, figures.progress) == (None, None, None)


@pytest.mark.parametrize("flags", [{"scale_out": True}, {"dev_mode": True}])
async def test_an_abort_ends_the_named_request_only(start, flags):
    engine, dialect = start("vllm", pace=50, **flags)
    async with Asking(dialect, "s-1") as first, Asking(dialect, "s-10") as second:
        assert await dialect.abort(["gone", "s-1"])
        with pytest.raises(AttemptFailed) as caught:
            await first
        assert caught.value.cause is Cause.ABORTED
        assert await dialect.abort([])  # names nobody: nobody ends
        assert engine.stats()["running"] == 1
        assert not second.done()


@BOTH
async def test_an_engine_without_an_abort_call(start, name):
    engine, dialect = start(name, pace=50)
    async with Asking(dialect):
        assert not await dialect.abort(["s-1"])
        assert not await dialect.abort(["s-1"])
        assert engine.stats()["running"] == 1


async def test_an_engine_that_is_gone_cannot_abort(start):
    engine, dialect = start("vllm")
    engine.kill()
    with pytest.raises(AttemptFailed):
        await dialect.abort(["s-1"])


@BOTH
async def test_a_reset_frees_what_ended_requests_have_left(start, name):
    flags = {"dev_mode": True} if name == "vllm" else {"slot_save_path": "/tmp"}
    engine, dialect = start(name, pace=100, slots=4, **flags)
    engine.set_fault(kind="kv_leak", times=1)
    async with Asking(dialect):
        pass
    await until(lambda: engine.stats()["running"] == 0)
    assert (await dialect.figures(5)).kv_usage > 0
    assert await dialect.reset_cache()
    assert (await dialect.figures(5)).kv_usage == 0


async def test_a_reset_is_refused_while_requests_run(start):
    _, dialect = start("vllm", pace=100, dev_mode=True)
    async with Asking(dialect):
        assert not await dialect.reset_cache()


@BOTH
async def test_an_engine_that_offers_no_reset(start, name):
    _, dialect = start(name)
    assert not await dialect.reset_cache()


@BOTH
async def test_one_request_after_the_other_while_the_engine_closes_its_connections(start, name):
    engine, dialect = start(name)
    for _ in range(30):
        await dialect.pulse("sim-model", 5)
        await dialect.count_tokens("sim-model", "x")
    assert engine.stats()["pulses"] == 30


@BOTH
async def test_a_probe_ends_in_its_time(start, name):
    engine, dialect = start(name)
    await dialect.probe(5)
    engine.stop()
    began = asyncio.get_running_loop().time()
    with pytest.raises(AttemptFailed) as caught:
        await dialect.probe(0.3)
    assert caught.value.cause is Cause.STALLED
    assert asyncio.get_running_loop().time() - began < 5
