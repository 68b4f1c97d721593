"""Reading figures out of a page of Prometheus' text format."""

from __future__ import annotations

import pytest

from streaming.core.failures import AttemptFailed, Cause
from streaming.engines.exposition import Reader, count, share
from tests.engines.client import Recording

# Two engines behind one address (data parallel), among lines that look alike.
PAGE = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m {odd} \\"name\\""} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prompt_tokens_total{engine="0",model_name="m"} 1e+06
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 20.0
vllm:generation_tokens_total{engine="1",model_name="m"} NaN
vllm:request_generation_tokens_sum{engine="0",model_name="m"} 77.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="1",num_gpu_blocks="None"} 1.0
process_cpu_seconds_total 12.5
"""


def test_values_and_labels_of_the_names_that_are_wanted():
    page = Reader("vllm:", ("num_requests_running", "generation_tokens_total", "gone")).read(PAGE)
    assert page.values == {"num_requests_running": [3, 4], "generation_tokens_total": [20]}
    assert page.labels["num_requests_running"][1] == {"engine": "1", "model_name": "m"}
    assert page.total("num_requests_running", "generation_tokens_total") == 27
    assert page.highest("num_requests_running") == 4
    assert (page.total("gone"), page.highest("gone")) == (None, None)


def test_names_without_labels_and_with_a_timestamp():
    page = Reader("", ("process_cpu_seconds_total",)).read(b"process_cpu_seconds_total 12.5 1700\n")
    assert page.total("process_cpu_seconds_total") == 12.5


async def test_the_figures_of_several_engines_behind_one_address():
    figures = await Recording("vllm", PAGE).dialect.figures(1)
    assert (figures.running, figures.waiting, figures.kv_usage) == (7, 0, 0.75)
    assert (figures.kv_tokens, figures.block_tokens) == (1600, 16)
    assert figures.progress == 1_000_020


async def test_a_page_with_something_else_than_numbers_is_malformed():
    engine = Recording("vllm", b'vllm:num_requests_running{engine="0"} many\n')
    with pytest.raises(AttemptFailed) as caught:
        await engine.dialect.figures(1)
    assert caught.value.cause is Cause.MALFORMED


async def test_another_page_tells_nothing():
    figures = await Recording("vllm", b"<html>hello</html>").dialect.figures(1)
    assert (figures.running, figures.kv_tokens, figures.progress) == (None, None, None)


@pytest.mark.parametrize("value", ["1e300", "-5", "NaN", "+Inf"])
def test_a_count_that_no_engine_can_have_is_none(value: str) -> None:
    page = Reader("vllm:", ("num_requests_running",)).read(
        f"vllm:num_requests_running {value}".encode()
    )
    assert count(page.total("num_requests_running")) is None
    assert share(42.0) is None
