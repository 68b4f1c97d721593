"""``deploy/chaos-mesh``: experiments that Chaos Mesh would take, on pods that there are."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest

from bench.chaos.given import GivenCluster
from bench.chaos.records import FaultKind
from tests.deploy import schema
from tests.deploy.kustomize import Manifest, build, containers, load
from tests.stack import ROOT

PLACE = ROOT / "deploy" / "chaos-mesh"
EXPERIMENTS = {
    path.name: manifest for path in sorted(PLACE.glob("*.yaml")) for manifest in load(path)
}
OURS = {"gateway"}
THEIRS = {"engine", "redis", "postgres", "controller"}
"""Components whose pods the guide asks to be labelled so; the last one is the proxy's."""


def specs(manifest: Manifest) -> Iterator[tuple[str, Manifest]]:
    """(kind, spec) of each fault in it."""
    spec = manifest["spec"]
    if manifest["kind"] == "Schedule":
        yield from scheduled(spec)
    elif manifest["kind"] == "Workflow":
        for template in spec["templates"]:
            kind = template["templateType"]
            if kind == "Schedule":
                yield from scheduled(template["schedule"])
            elif kind.endswith("Chaos"):
                assert "duration" not in template[field(kind)], "a template's end is its deadline"
                yield kind, template[field(kind)]
    else:
        yield manifest["kind"], spec


def scheduled(spec: Manifest) -> Iterator[tuple[str, Manifest]]:
    yield spec["type"], spec[field(spec["type"])]


def field(kind: str) -> str:
    return {"IOChaos": "ioChaos", "HTTPChaos": "httpChaos"}.get(kind, kind[0].lower() + kind[1:])


def selectors(spec: Manifest) -> list[Any]:
    target = spec.get("target")  # of HTTPChaos it is a word
    return [spec["selector"], *([target["selector"]] if isinstance(target, dict) else [])]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_is_valid(name: str) -> None:
    schema.check(EXPERIMENTS[name])
    assert [*specs(EXPERIMENTS[name])]


def test_a_field_that_chaos_mesh_does_not_know_is_noticed() -> None:
    manifest = EXPERIMENTS["node-kill.yaml"]
    wrong = {**manifest, "spec": {**manifest["spec"], "graceSeconds": 0}}
    with pytest.raises(jsonschema.ValidationError):
        schema.check(wrong)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_finds_its_pods(name: str) -> None:
    pods = build(ROOT / "deploy/kubernetes/example")
    (gateway,) = [
        one for one in pods
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "unbroken-gateway"
    ]  # fmt: skip
    labels = gateway["spec"]["template"]["metadata"]["labels"]
    for _, spec in specs(EXPERIMENTS[name]):
        for selector in selectors(spec):
            wanted = selector["labelSelectors"]
            component = wanted["app.kubernetes.io/component"]
            assert component in OURS | THEIRS
            if component in OURS:
                assert wanted.items() <= labels.items()
                assert selector["namespaces"] == [gateway["metadata"]["namespace"]]
        if spec["selector"]["labelSelectors"]["app.kubernetes.io/component"] in OURS:
            assert spec.get("containerNames", ["gateway"]) == [containers(gateway)[0]["name"]]
        if spec.get("action") == "container-kill":
            assert spec["containerNames"], "Chaos Mesh refuses it without"


def test_the_drill_is_a_whole_one() -> None:
    drill = EXPERIMENTS["workflow.yaml"]["spec"]
    templates = {template["name"]: template for template in drill["templates"]}
    assert len(templates) == len(drill["templates"])
    assert drill["entry"] in templates
    used = {drill["entry"]}
    for template in templates.values():
        assert "deadline" in template
        used |= {*template.get("children", [])}
    assert used == templates.keys()
    # What is said of a fault is said in the file of its name, and is the same fault there.
    for name, template in templates.items():
        path = f"{name}.yaml"
        if path in EXPERIMENTS:
            kind = template["templateType"]
            assert kind == EXPERIMENTS[path]["kind"]
            alone = {k: v for k, v in EXPERIMENTS[path]["spec"].items() if k != "duration"}
            assert template[field(kind)] == alone, name


def test_each_says_what_it_tests_and_the_guide_names_it() -> None:
    guide = (PLACE / "README.md").read_text()
    for name in EXPERIMENTS:
        assert f"`{name}`" in guide, name
        if name != "workflow.yaml":
            text = (PLACE / name).read_text()
            assert "# Promise:" in text, name
            assert "# Expect:" in text, name


def test_every_fault_of_the_harness_is_there() -> None:
    guide = (PLACE / "README.md").read_text()
    told = set(re.findall(r"`([a-z]+_[a-z]+)`", guide))
    assert {*get_args(FaultKind)} <= told


def test_the_harness_can_have_them_done(tmp_path: Path) -> None:
    (tmp_path / "chaos.key").write_text("ub-live-key")
    (tmp_path / "cluster.toml").write_text((PLACE / "cluster.toml").read_text())
    cluster = GivenCluster(tmp_path / "cluster.toml")
    told = tomllib.loads((PLACE / "cluster.toml").read_text())["faults"]
    assert told.keys() == cluster.targets.keys()
    for kind, fault in told.items():
        (target,) = fault["targets"]
        assert target in OURS | THEIRS
        for name in re.findall(r"-f (\S+)", f"{fault['strike']} {fault['undo']}"):
            assert name in EXPERIMENTS
            ((_, spec),) = specs(EXPERIMENTS[name])
            component = spec["selector"]["labelSelectors"]["app.kubernetes.io/component"]
            assert component == target, kind


def test_metrics_that_it_speaks_of_exist() -> None:
    catalogue = (ROOT / "docs/metrics.md").read_text()
    for path in PLACE.iterdir():
        for name in re.findall(r"\bunbroken_[a-z_]+", path.read_text()):
            assert f"`{name}`" in catalogue, (path.name, name)
