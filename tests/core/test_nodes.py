"""How nodes are written in the environment, and what may be configured about them."""

from __future__ import annotations

import pytest

from streaming.core.nodes import NodeOptions, NodeSpec, parse_engine_nodes


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("vllm+http://10.0.0.7:8000", NodeSpec("10.0.0.7:8000", "vllm", "http://10.0.0.7:8000")),
        ("gpu-a=vllm+https://a.example/", NodeSpec("gpu-a", "vllm", "https://a.example")),
        (" a=llamacpp+http://h:1/base/ ", NodeSpec("a", "llamacpp", "http://h:1/base")),
        (
            "a=vllm+http://h:1?continuation=text&template=chatml",
            NodeSpec("a", "vllm", "http://h:1", NodeOptions("text", "chatml")),
        ),
    ],
)
def test_entries(text, spec):
    assert NodeSpec.parse(text) == spec


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("http://h:1", "is not of the form"),
        ("tgi+http://h:1", "unknown dialect 'tgi'"),
        ("vllm+http://", "is not of the form"),
        ("vllm+http://:80", "names no host"),
        ("a b=vllm+http://h", "is not of the form"),
        ("vllm+http://me:pw@h:1", "must not hold a user name or password"),
        ("vllm+http://key@h:1?credential=env:K", "credential=env:NAME"),
        ("vllm+http://h?gpu_metrics=http://me:pw@h:1/metrics", "gpu_metrics must be a URL without"),
        ("vllm+http://h?colour=red", "unknown node option 'colour'"),
        ("vllm+http://h?continuation=magic", "continuation must be one of ids, text, regenerate"),
        ("vllm+http://h?template=gemma", "template must be one of chatml, llama3"),
        ("vllm+http://h?continuation=text", "continuation=text needs a template"),
        ("vllm+http://h?continuation=regenerate", "continuation=regenerate needs a template"),
    ],
)
def test_what_is_wrong_is_named(text, problem):
    with pytest.raises(ValueError, match=problem):
        NodeSpec.parse(text)


@pytest.mark.parametrize("text", ["vllm+http://me:pw@h:1", "a b=vllm+http://me:pw@h:1"])
def test_a_secret_in_an_address_is_not_repeated(text):
    with pytest.raises(ValueError, match=r"form|password") as caught:
        NodeSpec.parse(text)
    assert "pw" not in str(caught.value)


def test_several_entries():
    specs = parse_engine_nodes("a=vllm+http://h:1, b=llamacpp+http://h:2,")
    assert [spec.name for spec in specs] == ["a", "b"]
    assert parse_engine_nodes("") == []


@pytest.mark.parametrize(
    "text", ["a=vllm+http://h:1,a=vllm+http://h:2", "a=vllm+http://h:1,b=vllm+http://h:1/"]
)
def test_a_doubled_entry_is_refused(text):
    with pytest.raises(ValueError, match="given twice"):
        parse_engine_nodes(text)


@pytest.mark.parametrize(
    "text",
    ["a=vllm+http://h:99999", "a=vllm+http://h:0", "a=vllm+http://10.0.0.7:80?dns=all"],
)
def test_an_address_that_can_never_work_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)port|address"):
        parse_engine_nodes(text)


@pytest.mark.parametrize("options", [[], None, "continuation=text", 5])
def test_options_are_an_object(options: object) -> None:
    with pytest.raises(ValueError, match="object"):
        NodeOptions.parse(options)
