"""Piper's files, figure by figure: every expected number was worked out by hand."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from profiles.importers.piper import import_piper
from profiles.load import load_workload
from profiles.model_profile import Edge, Layer, LayerCost, WidthBytes


def variant(name: str, seconds: float, weights: float, a: float, b: float) -> dict[str, Any]:
    return {
        "id": name, "timePerSample": seconds, "parameterSize": weights, "memoryUsageA": a, "memoryUsageB": b,
        "syncTimeFw": {}, "syncTimeBw": {},
    }  # fmt: skip


TREE: dict[str, Any] = {
    "maxDevices": 2,
    "maxMemoryPerDevice": 1000.0,
    "bandwidth": 50.0,
    "mbsInBatch": 12,
    "nodes": [
        {
            "id": 3,
            "name": "block",
            "TMPCs": {
                "1": [variant("vanilla", 1e-8, 8.0, 40.0, 16.0), variant("activation recomp", 1.4e-8, 8.0, 10.0, 46.0)],
                "2": [variant("vanilla", 6e-9, 5.0, 24.0, 10.0)],
            },
        },
        {"id": 7, "name": "head", "TMPCs": {"1": [variant("vanilla", 6e-9, 0.0, 4.0, 0.0)]}},
    ],
    "edges": [{"sourceId": 3, "destId": 7, "communicationCost": 9.0}],
}


def changed(*path: str | int, value: Any) -> dict[str, Any]:
    """The document with another value at `path`."""
    tree = copy.deepcopy(TREE)
    node: Any = tree
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    return tree


def cost(width: int, forward: int, input_grad: int, weight_grad: int, recompute: int = 0) -> LayerCost:
    return LayerCost(
        device_type="reference", width=width, forward_ns=forward, input_grad_ns=input_grad, weight_grad_ns=weight_grad,
        recompute_ns=recompute,
    )  # fmt: skip


def test_layers():
    """Tests that times are split (10 ns = 3 + 7, of which W takes 3), and bytes, widths and recomputation read."""
    profile = import_piper(TREE, source="tiny.json").profile
    assert profile.name == "tiny"
    assert profile.layers == (
        Layer(
            name="3:block",
            costs=(cost(1, 3, 4, 3, 4), cost(2, 2, 2, 2)),
            parameter_bytes=8,
            state_bytes=16,
            stash_bytes=40,
            weight_stash_bytes=40,
            checkpoint_bytes=10,
            wider=(
                WidthBytes(
                    width=2,
                    state_bytes=10,
                    stash_bytes=24,
                    weight_stash_bytes=24,
                    checkpoint_bytes=24,
                    parameter_bytes=5,
                ),
            ),
        ),
        Layer(name="7:head", costs=(cost(1, 2, 4, 0),), stash_bytes=4, checkpoint_bytes=4),
    )
    assert profile.edges == (Edge(producer="3:block", consumer="7:head", bytes=9),)
    assert "one third forward" in profile.provenance


def test_cluster_and_options():
    """Tests that devices hang on one switch, and that widths and recomputation are offered."""
    workload = import_piper(TREE, source="tiny.json")
    assert workload.cluster is not None
    assert [device.memory_bytes for device in workload.cluster.devices] == [1000, 1000]
    assert [(link.a, link.b, link.bandwidth_bytes_per_s) for link in workload.cluster.links] == [
        ("gpu0", "switch", 50),
        ("gpu1", "switch", 50),
    ]
    assert workload.num_microbatches == 12
    assert workload.options == {"recompute": True, "max_width": 2}


def test_files_are_recognised(tmp_path: Path):
    """Tests that the loader takes the form for what it is."""
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TREE), encoding="utf-8")
    assert load_workload(path) == import_piper(TREE, source="tiny.json")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("edges", 0, "destId"), 8, r"edges\[0\].destId = 8 is no node; add it or correct the id"),
        (("nodes", 1, "TMPCs"), {}, r"nodes\[1\].TMPCs has no degree 1; measure the layer on one device"),
        (("nodes", 0, "TMPCs", "1", 0, "id"), "eager", r'\[0\].id = "eager" is not known; give "vanilla" or'),
        (("nodes", 0, "TMPCs", "1", 1, "id"), "vanilla", "lists a variant twice"),
        (("nodes", 0, "TMPCs", "two"), [], r'TMPCs\["two"\] is not a degree; give a whole number'),
        (("nodes", 0, "TMPCs", "1", 0, "timePerSample"), -1, "timePerSample = -1 is too small; give at least 0"),
        (("nodes", 0, "TMPCs", "1", 1, "timePerSample"), 9e-9, "with recomputation is 1e-09 s less than without"),
        (("bandwidth",), "fast", 'bandwidth = "fast" is not a number'),
        (("colour",), "red", "colour"),
    ],
)
def test_refusals(path: tuple[str | int, ...], value: Any, message: str):
    """Tests that a message names the file, the field, the value and the remedy."""
    with pytest.raises(ValueError, match=message) as error:
        import_piper(changed(*path, value=value), source="tiny.json")
    assert str(error.value).startswith("tiny.json: ")
