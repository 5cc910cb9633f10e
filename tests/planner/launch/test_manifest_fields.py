"""Tests of planner/launch/manifest_fields.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.launch.manifest_fields import FIELDS

kubernetes_validate = pytest.importorskip("kubernetes_validate")


def kubernetes_definitions() -> dict[str, Any]:
    """The definitions of the newest schema of Kubernetes by their last word."""
    root = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    version = max(root.iterdir(), key=lambda folder: [int(part) for part in folder.name[1:].split("-")[0].split(".")])
    found = json.loads((version / "_definitions.json").read_text())["$defs"]
    return {name.rpartition(".")[2]: value for name, value in found.items() if name.startswith("io.k8s.api.core.v1.")}


SAID = {"string": "string", "label": "string", "dns": "string", "boolean": "boolean"}


SAID |= {"integer": "integer", "count": "integer", "port": "integer"}


def test_fields_are_those_of_kubernetes():
    """Tests that every pod field in the table is in Kubernetes' schema, that none is missing, and scalars agree."""
    theirs = kubernetes_definitions()
    compared = [kind for kind in FIELDS if kind in theirs and kind not in ("Pod", "PodTemplate", "JobSpec")]
    assert {"PodSpec", "Container", "Volume", "VolumeMount", "EnvVar", "Toleration"} <= set(compared)
    for kind in compared:
        properties = theirs[kind]["properties"]
        assert set(FIELDS[kind]) == set(properties), kind
        for name, given in FIELDS[kind].items():
            said = properties[name].get("type", "object")
            said = next(word for word in said if word != "null") if isinstance(said, list) else said
            if given in SAID or "|" in given.strip("[]"):
                assert said == ("array" if given.startswith("[") else SAID.get(given, "string")), (kind, name)
            elif given.startswith("["):
                assert said == "array", (kind, name)
