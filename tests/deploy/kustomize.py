"""What ``kubectl kustomize`` makes of ``deploy/kubernetes``, for machines without kubectl.

Only as much of it as our files use; anything else is an error, so that nothing is silently left out.
Against the real one it leaves out the hash behind the names of generated ConfigMaps.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

KNOWN = {
    "apiVersion", "kind", "resources", "components", "labels", "images", "namespace", "patches",
    "configMapGenerator",
}  # fmt: skip
CLUSTER_WIDE = {"Namespace"}


def load(path: Path) -> list[Manifest]:
    """The documents of one file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def build(directory: Path) -> list[Manifest]:
    """The manifests of a kustomization, in the order in which they are named."""
    return _built(directory, [])


def _built(directory: Path, objects: list[Manifest]) -> list[Manifest]:
    (wanted,) = load(directory / "kustomization.yaml")
    assert wanted.keys() <= KNOWN, f"{directory}: {wanted.keys() - KNOWN}"
    for name in wanted.get("resources", []):
        path = directory / name
        objects = [*objects, *(build(path) if path.is_dir() else load(path))]
    for generator in wanted.get("configMapGenerator", []):
        objects.append(_config_map(directory, generator))
    for name in wanted.get("components", []):
        objects = _built((directory / name).resolve(), objects)
    for patch in wanted.get("patches", []):
        change = yaml.safe_load(patch["patch"])
        (found,) = [one for one in objects if _key(one) == _key(change)]
        merge(found, change)
    for one in objects:
        for pair in wanted.get("labels", []):
            _label(one, pair)
        for image in wanted.get("images", []):
            _set_image(one, image)
        if "namespace" in wanted and one["kind"] not in CLUSTER_WIDE:
            one["metadata"]["namespace"] = wanted["namespace"]
            for subject in one.get("subjects", []):
                subject["namespace"] = wanted["namespace"]
    return objects


def merge(target: Manifest, change: Manifest) -> None:
    """A strategic merge: null removes, lists of named things are merged by name."""
    for key, value in change.items():
        old = target.get(key)
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(old, dict):
            merge(old, value)
        elif isinstance(value, list) and isinstance(old, list) and _named(value):
            for item in value:
                known = [one for one in old if one["name"] == item["name"]]
                if known:
                    merge(known[0], item)
                else:
                    old.insert(0, copy.deepcopy(item))
        else:
            target[key] = copy.deepcopy(value)


def containers(manifest: Manifest) -> list[Manifest]:
    """Those of its pods."""
    spec = pod_spec(manifest)
    return [*spec.get("containers", []), *spec.get("initContainers", [])]


def pod_spec(manifest: Manifest) -> Manifest:
    """What its pods are; empty where it has none."""
    return manifest.get("spec", {}).get("template", {}).get("spec", {})


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _named(items: list[Any]) -> bool:
    return all(isinstance(item, dict) and "name" in item for item in items)


def _config_map(directory: Path, generator: Manifest) -> Manifest:
    assert generator.keys() == {"name", "envs"}, generator
    lines = [
        line
        for name in generator["envs"]
        for line in (directory / name).read_text().splitlines()
        if line and not line.startswith("#")
    ]
    data = dict(line.split("=", 1) for line in lines)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": generator["name"]},
        "data": data,
    }


def _label(manifest: Manifest, wanted: Manifest) -> None:
    pairs = wanted["pairs"]
    manifest["metadata"].setdefault("labels", {}).update(pairs)
    spec = manifest.get("spec", {})
    if wanted.get("includeTemplates") and "template" in spec:
        spec["template"]["metadata"]["labels"].update(pairs)
    if wanted.get("includeSelectors"):
        if manifest["kind"] == "Service":
            spec["selector"].update(pairs)
        for key in ("selector", "podSelector"):
            if manifest["kind"] != "Service" and key in spec:
                spec[key].setdefault("matchLabels", {}).update(pairs)


def _set_image(manifest: Manifest, image: Manifest) -> None:
    for container in containers(manifest):
        if container["image"] == image["name"]:
            container["image"] = f"{image['newName']}:{image['newTag']}"
