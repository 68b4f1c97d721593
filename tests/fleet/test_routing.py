"""How streams spread over nodes: by load, weight, capacity, and what their caches hold."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any, cast

import pytest

from streaming.core.nodes import NodeOptions
from streaming.core.prefix import prefix_key
from streaming.engines.base import Capabilities, Figures
from streaming.fleet.breaker import Circuit
from streaming.fleet.nodes import FIGURES_SECONDS, Health, Node, Switches
from streaming.fleet.routing import Wanted, choose

NOW = 1000.0
NEW = Wanted(model="m")
CONTINUED = Wanted(model="m", is_continuation=True)


def node(number: int, **values: Any) -> Node:
    options = NodeOptions(
        **{name: values.pop(name) for name in ("capacity", "exclusive") if name in values}
    )
    made = Node(number, f"n{number}", "", cast(Any, None), options, health=Health.UP)
    made.models = {"m": None}
    made.rank = number
    for name, value in values.items():
        setattr(made, name, value)
    return made


def spread(nodes: list[Node], streams: int, wanted: Wanted = NEW) -> list[int]:
    """How many of so many streams each node gets, when none of them ends."""
    for _ in range(streams):
        chosen = choose(nodes, wanted, NOW)
        assert chosen is not None
        chosen.in_flight += 1
    return [one.in_flight for one in nodes]


def figures(**values: Any) -> Figures:
    return Figures(values.pop("asked_at", NOW), **values)


def test_equal_nodes_share_equally():
    assert spread([node(number) for number in range(4)], 400) == [100] * 4


@pytest.mark.parametrize("weights", [(1.0, 3.0), (0.5, 0.5, 1.0), (5.0, 1.0, 1.0, 1.0)])
def test_weights_are_shares(weights):
    nodes = [node(number, weight=weight) for number, weight in enumerate(weights)]
    for got, weight in zip(spread(nodes, 800), weights, strict=True):
        assert got == pytest.approx(800 * weight / sum(weights), abs=1)


def test_streams_that_come_and_go_stay_balanced():
    rng = random.Random(4)
    nodes = [node(number, weight=weight) for number, weight in enumerate((1.0, 2.0, 4.0))]
    running: list[Node] = []
    for _ in range(3000):
        if len(running) > 140:
            running.pop(rng.randrange(len(running))).in_flight -= 1
        chosen = choose(nodes, NEW, NOW)
        assert chosen is not None
        chosen.in_flight += 1
        running.append(chosen)
    assert [one.in_flight for one in nodes] == pytest.approx([20, 40, 80], abs=3)


def test_several_gateways_balance_together():
    """Each knows the others' streams as of the last second only."""
    gateways = [[node(number) for number in range(5)] for _ in range(6)]
    for place, nodes in enumerate(gateways):
        for one in nodes:
            one.rank = (one.id - place) % 5
    for _ in range(20):  # seconds
        for nodes in gateways:
            for place, one in enumerate(nodes):
                one.others_in_flight = sum(
                    other[place].in_flight for other in gateways if other is not nodes
                )
        for nodes in gateways:
            spread(nodes, 3)
    total = [sum(nodes[place].in_flight for nodes in gateways) for place in range(5)]
    assert sum(total) == 360
    assert max(total) - min(total) <= 10


def test_many_gateways_with_one_stream_each_do_not_meet_on_one_node():
    total = Counter()
    for place in range(12):
        nodes = [node(number) for number in range(4)]
        for one in nodes:
            one.rank = (one.id - place) % 4
        chosen = choose(nodes, NEW, NOW)
        assert chosen is not None
        total[chosen.id] += 1
    assert set(total.values()) == {3}


def test_capacities_are_shares_where_all_are_known():
    nodes = [node(1, slots=4), node(2, capacity="8", slots=99)]
    assert spread(nodes, 9) == [3, 6]


def test_a_node_whose_slots_are_taken_comes_last():
    nodes = [node(1, slots=2), node(2)]
    assert spread(nodes, 10) == [2, 8]
    # When all would queue, it is as before.
    assert spread([node(1, slots=2), node(2, slots=2)], 10) == [5, 5]


def test_what_queues_in_an_engine_counts():
    nodes = [node(1), node(2)]
    nodes[0].note_figures(figures(running=3, waiting=6))
    assert spread(nodes, 6) == [0, 6]
    nodes = [node(1), node(2)]
    nodes[0].note_figures(figures(running=3, waiting=6, asked_at=NOW - FIGURES_SECONDS))
    assert spread(nodes, 6) == [3, 3]


def test_strangers_count_on_shared_nodes_only():
    for exclusive, expected in (("off", [0, 8]), ("on", [4, 4])):
        nodes = [node(1, exclusive=exclusive), node(2)]
        nodes[0].note_figures(figures(running=8, waiting=0))
        assert spread(nodes, 8) == expected
    ours = node(1, exclusive="off", in_flight=5, others_in_flight=2)
    ours.note_figures(figures(running=8, waiting=0))
    assert (ours.strangers, ours.load(NOW)) == (1, 8)


def test_a_node_that_returns_gets_few_at_first():
    nodes = [node(1), node(2)]
    nodes[0].readmission.begin(NOW)
    assert spread(nodes, 40) == [3, 37]
    nodes = [node(1), node(2)]
    nodes[0].readmission.begin(NOW - 60)
    assert spread(nodes, 40) == [20, 20]
    alone = node(1)
    alone.readmission.begin(NOW)
    assert spread([alone], 40) == [40]


def opened(number: int, since: float = 0.0) -> Node:
    one = node(number)
    for _ in range(5):
        one.breaker.failed(NOW - since)
    assert one.breaker.state is Circuit.OPEN
    return one


def test_an_open_circuit_is_better_than_none():
    broken, well = opened(1), node(2)
    assert spread([broken, well], 10) == [0, 10]
    assert choose([broken], NEW, NOW) is broken
    assert choose([broken], CONTINUED, NOW) is broken
    # Back where it has failed before is better than where nothing works.
    assert choose([broken, well], Wanted(model="m", failed=[well]), NOW) is well
    other = opened(3)
    assert choose([broken, other], Wanted(model="m", failed=[broken]), NOW) is other
    broken.blocked_until = NOW + 1
    assert choose([broken], NEW, NOW) is None


def test_one_new_stream_tries_a_circuit_and_no_continuation_does():
    trying, well = opened(1, since=5.0), node(2)
    assert choose([trying, well], CONTINUED, NOW) is well
    assert choose([trying, well], NEW, NOW) is trying
    trying.breaker.began(NOW)
    assert choose([trying, well], NEW, NOW) is well


def full(number: int, **values: Any) -> Node:
    one = node(number, in_flight=1, **values)
    one.note_figures(figures(kv_usage=0.95, running=1, waiting=0))
    return one


def test_a_node_whose_cache_is_full_takes_continuations_only():
    one, other = full(1), node(2, in_flight=5)
    assert choose([one, other], NEW, NOW) is other
    assert choose([one, other], CONTINUED, NOW) is one
    assert choose([one], NEW, NOW) is None  # it waits: there is no room anywhere
    assert choose([one], NEW, NOW + FIGURES_SECONDS) is one  # old figures say nothing


def test_it_must_fall_well_below_the_mark_before_it_takes_new_ones_again():
    one = full(1)
    for usage, takes in ((0.93, False), (0.90, False), (0.86, True), (0.90, True), (0.92, False)):
        one.note_figures(figures(kv_usage=usage, running=1))
        assert one.takes("m", NOW) is takes, usage


def test_what_is_only_kept_makes_way():
    one = node(1)
    one.note_figures(figures(kv_usage=1.0, running=0))
    assert choose([one], NEW, NOW) is one


def cached(number: int, **values: Any) -> Node:
    return node(number, can=Capabilities(prefix_caching=True), **values)


def test_prompts_that_begin_alike_meet_on_one_node():
    nodes = [cached(number) for number in range(5)]
    rng = random.Random(1)
    homes = {}
    for prefix in (rng.getrandbits(64) for _ in range(300)):
        chosen = choose(nodes, Wanted(model="m", prefix=prefix), NOW)
        assert chosen is not None
        homes[prefix] = chosen
        # Wherever else nodes come and go.
        for gone in nodes:
            if gone is not chosen:
                rest = [one for one in nodes if one is not gone]
                assert choose(rest, Wanted(model="m", prefix=prefix), NOW) is chosen
    counts = Counter(home.id for home in homes.values())
    assert min(counts.values()) > 35
    heavy = [cached(1, weight=1.0), cached(2, weight=3.0)]
    taken = Counter(
        choose(heavy, Wanted(model="m", prefix=prefix), NOW).id  # type: ignore[union-attr]
        for prefix in homes
    )
    assert taken[2] / 300 == pytest.approx(0.75, abs=0.08)


def test_affinity_never_overloads_a_node():
    nodes = [cached(number) for number in range(4)]
    got = spread(nodes, 400, Wanted(model="m", prefix=7))
    assert max(got) <= 1.25 * min(got) + 3
    assert max(got) > min(got)


def test_affinity_is_for_nodes_that_cache():
    nodes = [node(1), node(2)]
    assert spread(nodes, 40, Wanted(model="m", prefix=7)) == [20, 20]
    mixed = [cached(1), node(2), node(3)]
    for prefix in range(20):
        assert choose(mixed, Wanted(model="m", prefix=prefix), NOW) is mixed[0]


def test_continuations_prefer_nodes_that_cache():
    nodes = [node(1), cached(2)]
    assert spread(nodes, 30, CONTINUED) == [10, 20]
    assert spread([node(1), cached(2)], 30, NEW) == [15, 15]


def test_nothing_is_continued_where_failover_is_off():
    broken, off = node(1), node(2, switches=Switches(failover=False))
    failed = Wanted(model="m", failed=[broken], is_continuation=True)
    assert choose([broken, off], failed, NOW) is broken
    assert choose([off], failed, NOW) is None
    assert choose([off], NEW, NOW) is off


def chat(*turns: str, system: str = "Be kind.") -> list[dict[str, str]]:
    roles = itertools.cycle(("user", "assistant"))
    said = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
    return [{"role": "system", "content": system}, *said]


def test_a_conversation_keeps_its_key_while_it_grows():
    assert prefix_key(chat("Hello")) == prefix_key(chat("Hello", "Hi!", "How are you?"))
    keys = {
        prefix_key(chat("Hello")), prefix_key(chat("Hello", system="Be brief.")),
        prefix_key(chat("Hello?")), prefix_key([{"role": "user", "content": "Hello"}]),
        prefix_key([{"role": "user", "content": "\ud800"}]),
    }  # fmt: skip
    assert len(keys) == 5
    assert all(0 <= key < 2**64 for key in keys)


def test_the_key_is_of_the_beginning_only():
    long = "x" * 5000
    assert prefix_key(chat(long + "a")) == prefix_key(chat(long + "b"))
    assert prefix_key(chat("a", system=long)) == prefix_key(chat("b", system=long))


def test_a_continuation_prefers_a_node_that_is_not_slow():
    slow, quick = node(0, interval=0.2, in_flight=2), node(1, interval=0.05, in_flight=5)
    assert choose([slow, quick], CONTINUED, NOW) is quick
    assert choose([slow, quick], NEW, NOW) is slow
    nearly = node(2, interval=0.07)
    assert choose([quick, nearly], CONTINUED, NOW) is nearly


def test_a_broken_answer_waits_for_the_probe_of_a_suspect_a_moment_only():
    failed, suspect = node(0), node(1, health=Health.SUSPECT, suspected_at=NOW)
    wanted = Wanted(model="m", is_continuation=True, failed=[failed])
    assert choose([failed, suspect], wanted, NOW + 0.05) is None
    assert choose([failed, suspect], wanted, NOW + 0.2) is failed


def test_nobody_waits_for_a_suspect_that_must_generate_a_token():
    failed, mute = node(0), node(1, health=Health.SUSPECT, suspected_at=NOW, is_mute=True)
    wanted = Wanted(model="m", is_continuation=True, failed=[failed])
    assert choose([failed, mute], wanted, NOW) is failed
