"""Kubernetes' strategic merge: tests of planner/launch/strategic_merge.py."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from planner.launch.manifest_fields import MERGE_KEYS
from planner.launch.strategic_merge import MERGED_SETS, merge

kubernetes_validate = pytest.importorskip("kubernetes_validate")


def test_lists_merge_by_their_keys_as_in_kubernetes():
    """Tests that named lists merge by key, others are replaced, and null and directives remove, in order."""
    base = {
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "tolerations": [{"key": "x"}],
        "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}],
        "labels": {"a": "1", "b": "2"},
    }
    patch = {
        "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}, {"name": "A", "$patch": "delete"}],
        "tolerations": [{"key": "y"}],
        "volumes": [{"name": "v", "emptyDir": None, "hostPath": {"path": "/d"}}],
        "labels": {"a": None},
    }
    assert merge(base, patch, where="p") == {
        "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
        "tolerations": [{"key": "y"}],
        "volumes": [{"name": "v", "hostPath": {"path": "/d"}}],
        "labels": {"b": "2"},
    }
    assert base["env"][0] == {"name": "A", "value": "1"}
    replaced = merge(
        base, {"env": [{"$patch": "replace"}, {"name": "D"}], "labels": {"$patch": "replace", "c": "3"}}, where="p"
    )
    assert (replaced["env"], replaced["labels"]) == ([{"name": "D"}], {"c": "3"})
    assert "labels" not in merge(base, {"labels": {"$patch": "delete"}}, where="p")


def reachable(root: str, theirs: dict[str, Any]) -> set[str]:
    """The definitions that one of them speaks of."""
    found, left = set[str](), [root]
    while left:
        if (name := left.pop()) in theirs and name not in found:
            found.add(name)
            left += re.findall(r"#/\$defs/[\w.-]*\.(\w+)\"", json.dumps(theirs[name]))
    return found


def test_lists_merge_by_the_keys_that_kubernetes_states():
    """Tests that every list of a pod that Kubernetes 1.37 merges is merged by the same key, and no other one is."""
    root = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / "v1.37.0-local"
    whole = json.loads((root / "_definitions.json").read_text())["$defs"]
    theirs = {
        name.rpartition(".")[2]: value for name, value in whole.items() if ".core.v1." in name or ".meta." in name
    }
    keys, sets = dict[str, str](), set[str]()
    for kind in reachable("PodTemplateSpec", theirs):
        for name, told in theirs[kind].get("properties", {}).items():
            if key := told.get("x-kubernetes-patch-merge-key"):
                assert keys.setdefault(name, key) == key
            elif told.get("x-kubernetes-patch-strategy") == "merge":
                sets.add(name)
    ours = set(MERGE_KEYS) - {"replicatedJobs", "runtimePatches", "tasks"}  # of JobSet, TrainJob and Volcano
    assert {name: MERGE_KEYS[name] for name in ours} == keys
    assert set(MERGED_SETS) == sets


def test_new_lists_and_sets_are_merged():
    """Tests that responders to an eviction merge by name, owners by uid, and that finalizers are added."""
    base = {"evictionResponders": [{"name": "a/x", "priority": 1}], "finalizers": ["a/b"]}
    base["ownerReferences"] = [{"uid": "1", "name": "o"}]
    patch = {"evictionResponders": [{"name": "a/x", "priority": 2}, {"name": "a/y"}], "finalizers": ["a/c", "a/b"]}
    patch["ownerReferences"] = [{"uid": "1", "controller": True}]
    assert merge(base, patch, where="p") == {
        "evictionResponders": [{"name": "a/x", "priority": 2}, {"name": "a/y"}],
        "finalizers": ["a/b", "a/c"],
        "ownerReferences": [{"uid": "1", "name": "o", "controller": True}],
    }
