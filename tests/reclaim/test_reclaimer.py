"""The inline reclaimer on real engines: what it aborts, what it sees, and what it cannot see."""

from __future__ import annotations

import asyncio

from streaming.core.ids import uuid7
from streaming.fleet.nodes import Health
from tests.durability.reader import until


async def test_a_closed_connection_is_seen_to_be_gone(make_world):
    world = await make_world()
    stays, *others = await world.begin(3)
    await world.end(others)
    await until(lambda: world.outcomes() == {"verified": 2})
    assert len(world.reclaimed) == 2
    assert world.engine.stats()["running"] == 1
    ((ended, reclaimed),) = world.stack.sql(
        "SELECT min(ended_at), min(reclaimed_at) FROM streaming_attempt WHERE node_id = %s",
        world.node.id,
    )
    assert reclaimed >= ended
    assert not stays.task.done()


async def test_what_the_engine_has_finished_needs_no_look(make_world):
    world = await make_world()
    (running,) = await world.begin()
    looks = world.count_calls("figures")
    world.reclaimer.ended(world.node, running.session_id, 1, running.request_id, True)
    await asyncio.sleep(0.1)
    assert world.reclaimer.waiting == 0
    assert not looks


async def test_five_hundred_at_once_cost_a_few_calls(make_world):
    world = await make_world(scale_out=True)
    attempts = await world.begin(500)
    looks, aborts = world.count_calls("figures"), world.count_calls("abort")
    await world.end(attempts)
    await until(lambda: world.reclaimer.waiting == 0)
    assert len(looks) < 20
    assert len(aborts) <= 3
    await until(lambda: world.outcomes() == {"verified": 500})
    await until(lambda: not world.reclaimer._tasks)


async def test_requests_that_outlive_their_connection_are_aborted_by_id(make_world):
    world = await make_world(scale_out=True)
    stays, *others = await world.begin(4)
    world.engine.set_fault(kind="zombie", times=-1)
    await world.end(others)
    await until(lambda: world.outcomes() == {"verified": 3})
    assert world.engine.stats()["running"] == 1
    assert world.engine.stats()["outcomes"]["aborted"] == 3
    assert not stays.task.done()


async def test_what_cannot_be_aborted_is_overdue_and_an_incident_until_it_is_gone(make_world):
    world = await make_world()
    assert not world.node.can.abort
    attempts = await world.begin(2)
    world.engine.set_fault(kind="zombie", times=-1)
    await world.end(attempts)
    await until(lambda: world.outcomes() == {"overdue": 2}, 12)
    await until(lambda: world.open_incidents() == [("kv_not_reclaimed", world.node.name)])
    assert world.reclaimed == []
    world.engine.restart()
    await until(lambda: world.outcomes() == {"verified": 2})
    await until(lambda: world.open_incidents() == [])


async def test_a_frozen_node_is_unverifiable_until_it_goes_on(make_world):
    world = await make_world()
    attempts = await world.begin(2)
    world.engine.stop()
    await world.end(attempts)
    world.node.health = Health.DOWN
    await until(lambda: world.outcomes() == {"unverifiable": 2}, 12)
    world.engine.cont()
    world.node.health = Health.UP
    await until(lambda: world.outcomes() == {"verified": 2})


async def test_what_a_dead_process_left_is_gone_when_its_count_is(make_world):
    """Until the others are counted anew the dead process's own streams would hide it."""
    world = await make_world(scale_out=True)
    (left,) = await world.begin()
    world.engine.set_fault(kind="zombie", times=-1)
    left.task.cancel()
    await asyncio.gather(left.task, return_exceptions=True)
    world.write([left])
    world.node.in_flight, world.node.others_in_flight = 0, 1
    world.reclaimer.left_behind(world.node.id, left.session_id, 1, left.request_id)
    looks = world.count_calls("figures")
    await until(lambda: world.engine.stats()["outcomes"].get("aborted") == 1)
    await until(lambda: len(looks) > 3)
    assert world.outcomes() == {"pending": 1}
    world.node.others_in_flight = 0
    world.fleet.others_known_at = asyncio.get_running_loop().time()
    await until(lambda: world.outcomes() == {"verified": 1})


async def test_nobody_looks_after_what_was_left_on_a_removed_node(make_world):
    world = await make_world()
    world.reclaimer.left_behind(None, uuid7(), 1, "gone")
    world.reclaimer.left_behind(world.node.id + 1000, uuid7(), 1, "gone")
    assert world.reclaimer.waiting == 0


async def test_a_dead_node_is_unverifiable_until_it_is_back(make_world):
    world = await make_world()
    attempts = await world.begin(2)
    world.engine.kill()
    world.node.health = Health.DOWN
    await world.end(attempts)
    await until(lambda: world.outcomes() == {"unverifiable": 2})
    world.engine.restart()
    world.node.health = Health.UP
    await until(lambda: world.outcomes() == {"verified": 2})


async def test_figures_of_a_suspect_prove_nothing(make_world):
    """A frozen engine's figures may come from a process of it that is not frozen."""
    world = await make_world()
    attempts = await world.begin(1)
    world.node.health = Health.SUSPECT
    await world.end(attempts)
    await until(lambda: world.outcomes() == {"unverifiable": 1}, 12)
    world.node.health = Health.UP
    await until(lambda: world.outcomes() == {"verified": 1})


async def test_on_a_shared_node_a_figure_above_ours_proves_nothing(make_world):
    world = await make_world(options={"exclusive": "off"})
    ours, theirs = await world.begin(2)
    world.node.in_flight -= 1  # of which one is another client's
    await world.end([ours])
    await until(lambda: world.outcomes() == {"unverifiable": 1}, 12)
    assert world.open_incidents() == []
    theirs.task.cancel()
    await until(lambda: world.outcomes() == {"verified": 1})


async def test_a_shared_node_that_was_restarted_has_nothing_of_ours(make_world):
    world = await make_world(options={"exclusive": "off"})
    ours, _ = await world.begin(2)
    world.node.in_flight -= 1
    await world.end([ours])
    await asyncio.sleep(0.5)
    world.engine.restart()
    await world.reconnect()
    await world.begin(1)
    world.node.in_flight -= 1
    await until(lambda: world.outcomes() == {"verified": 1})


async def test_an_engine_without_figures_is_unverifiable_and_left_alone(make_world):
    world = await make_world(no_metrics=True)
    await world.end(await world.begin(2))
    await until(lambda: world.outcomes() == {"unverifiable": 2})
    assert world.reclaimer.waiting == 0


async def test_a_node_that_is_taken_away_cannot_be_asked_any_more(make_world):
    world = await make_world()
    attempts = await world.begin(2)
    world.engine.set_fault(kind="zombie", times=-1)
    await world.end(attempts)
    del world.fleet.nodes[world.node.id]
    await until(lambda: world.outcomes() == {"unverifiable": 2})
    assert world.reclaimer.waiting == 0


async def test_the_end_is_written_after_it_was_verified(make_world):
    world = await make_world()
    attempts = await world.begin(2)
    await world.end(attempts, written=False)
    await until(lambda: len(world.reclaimed) == 2)
    await asyncio.sleep(0.5)
    world.write(attempts)
    await until(lambda: world.outcomes() == {"verified": 2})


async def test_at_the_end_of_the_process_what_is_not_seen_stays_pending(make_world):
    world = await make_world()
    attempts = await world.begin(2)
    world.engine.set_fault(kind="zombie", times=-1)
    await world.end(attempts)
    await asyncio.sleep(0.1)
    await world.reclaimer.stop()
    assert world.outcomes() == {"pending": 2}
    await until(lambda: not world.reclaimer._tasks)


async def test_what_is_seen_just_before_the_end_of_the_process_is_written(make_world):
    world = await make_world()
    await world.end(await world.begin(2))
    await until(lambda: len(world.reclaimed) == 2)
    await world.reclaimer.stop()
    assert world.outcomes() == {"verified": 2}


async def test_llama_cpp_has_its_slots_looked_at(make_world):
    world = await make_world("llamacpp")
    await world.end(await world.begin(2))
    await until(lambda: world.outcomes() == {"verified": 2})
