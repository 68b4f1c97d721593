from bench.soak import Reading, growth


def reading(streams: int, memory_kb: float) -> Reading:
    return Reading(streams=streams, memory_kb=memory_kb, files=10, threads=3)


def test_growth_is_what_each_stream_leaves_behind_once_it_is_warm():
    warming = [reading(500, 50_000.0), reading(1000, 70_000.0)]
    level = [reading(500 * n, 80_000.0) for n in range(3, 11)]
    assert growth([*warming, *level]) == 0.0
    leaking = [reading(500 * n, 80_000.0 + 2.5 * 500 * n) for n in range(3, 11)]
    assert abs(growth([*warming, *leaking]) - 2.5) < 1e-9
