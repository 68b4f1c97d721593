"""ENGINE_NODES against what operators have put into the node table themselves."""

from __future__ import annotations

import pytest

from tests.stack import Stack

HERS = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def stack():
    with Stack(gateways=1, engine_nodes=[]) as one:
        yield one


def nodes(stack: Stack) -> set[tuple[str, str, str]]:
    return set(stack.sql("SELECT name, base_url, source FROM streaming_inferencenode"))


@pytest.mark.parametrize(
    "entry", [f"hers=vllm+{HERS}", f"other=vllm+{HERS}", "hers=vllm+http://127.0.0.1:10"]
)
def test_a_node_of_an_operator_stays_hers(stack, entry):
    stack.sql("DELETE FROM streaming_inferencenode")
    stack.sql(
        "INSERT INTO streaming_inferencenode (name, dialect, base_url, admin_state, source, weight,"
        " options, created_at, health, health_reason, models_served) VALUES ('hers', 'vllm', %s,"
        " 'active', 'admin', 1, '{}', now(), 'unknown', '', '[]')",
        HERS,
    )  # fmt: skip
    gateway = stack.start_gateway(ENGINE_NODES=f"{entry},free=vllm+http://127.0.0.1:11")
    gateway.terminate()
    assert nodes(stack) == {
        ("hers", HERS, "admin"),
        ("free", "http://127.0.0.1:11", "environment"),
    }


def test_nodes_follow_the_environment(stack):
    stack.sql("DELETE FROM streaming_inferencenode")
    for entries, expected in [
        ("a=vllm+http://127.0.0.1:11,b=vllm+http://127.0.0.1:12", {"a", "b"}),
        ("b=llamacpp+http://127.0.0.1:12", {"b"}),
        ("b=vllm+http://127.0.0.1:13?continuation=text&template=chatml", {"b"}),
    ]:
        stack.start_gateway(ENGINE_NODES=entries).terminate()
        assert {name for name, _, _ in nodes(stack)} == expected
    rows = stack.sql(
        "SELECT dialect, base_url, options->>'continuation' FROM streaming_inferencenode"
    )
    assert rows == [("vllm", "http://127.0.0.1:13", "text")]
