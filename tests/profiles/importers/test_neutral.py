"""The neutral form, figure by figure: every expected number was worked out by hand."""

import copy
from typing import Any

import pytest

from profiles.cluster import Device, Link
from profiles.importers.neutral import import_neutral
from profiles.model_profile import Edge, Layer, LayerCost
from profiles.workload import Workload

# Half a nanosecond on purpose: 12.5 -> 12 and 13.5 -> 14; a backward of 7 is 4 + 3, of 5 is 2 + 3.
TREE: dict[str, Any] = {
    "name": "tiny",
    "source": "measured by nobody",
    "layers": [
        {"name": "a", "forward_ms": 0.0000125, "backward_ms": 0.000007, "param_bytes": 5, "activation_bytes": 10},
        {"name": "b", "forward_ms": 0.0000135, "backward_ms": 0.000005, "param_bytes": 0, "activation_bytes": 20},
        {"name": "c", "forward_ms": 2, "backward_ms": 0.000005, "param_bytes": 6, "activation_bytes": 30},
    ],
    "edges": [[0, 1], [0, 2], [1, 2]],
    "cluster": {
        "devices": [
            {"name": "x", "memory_bytes": 100},
            {"name": "y", "memory_bytes": 200, "speed": 0.8},
            {"name": "z", "memory_bytes": 300, "speed": 1.0},
        ],
        "links": [
            {"a": "x", "b": "y", "bandwidth_bytes_per_s": 2.5, "latency_s": 1.5e-9},
            {"a": "y", "b": "z", "bandwidth_bytes_per_s": 3.5},
        ],
    },
    "microbatches": 4,
    "meta": {"static_multiplier": 2.5, "tags": ["ignored"]},
}


def changed(*path: str | int, **fields: Any) -> dict[str, Any]:
    """The document with `fields` put into the object at `path`."""
    tree = copy.deepcopy(TREE)
    node = tree
    for part in path:
        node = node[part]  # type: ignore[index]
    node.update(fields)
    return tree


def imported(*path: str | int, **fields: Any) -> Workload:
    return import_neutral(changed(*path, **fields), source="tiny.json")


def cost(device_type: str, forward: int, input_grad: int, weight_grad: int) -> LayerCost:
    return LayerCost(device_type=device_type, forward_ns=forward, input_grad_ns=input_grad, weight_grad_ns=weight_grad)


def test_layers():
    """Tests that times are rounded, split and scaled, and that stash, weight stash and state get their defaults."""
    assert imported().profile.layers == (
        Layer(
            name="a",
            costs=(cost("reference", 12, 4, 3), cost("reference/0.8", 15, 5, 4)),
            parameter_bytes=5,
            state_bytes=13,
            stash_bytes=10,
            weight_stash_bytes=10,
        ),
        Layer(
            name="b",
            costs=(cost("reference", 14, 5, 0), cost("reference/0.8", 18, 6, 0)),
            stash_bytes=20,
        ),
        Layer(
            name="c",
            costs=(cost("reference", 2_000_000, 2, 3), cost("reference/0.8", 2_500_000, 2, 4)),
            parameter_bytes=6,
            state_bytes=15,
            stash_bytes=30,
            weight_stash_bytes=30,
        ),
    )


def test_edges():
    """Tests that every edge carries its producer's whole output, in both directions."""
    assert imported().profile.edges == (
        Edge(producer="a", consumer="b", bytes=10),
        Edge(producer="a", consumer="c", bytes=10),
        Edge(producer="b", consumer="c", bytes=20),
    )


def test_cluster():
    """Tests that a device's type tells its speed, and that links are rounded, duplex and between devices."""
    cluster = imported().cluster
    assert cluster is not None
    assert cluster.name == "tiny cluster"
    assert cluster.devices == (
        Device(name="x", type="reference", memory_bytes=100),
        Device(name="y", type="reference/0.8", memory_bytes=200),
        Device(name="z", type="reference", memory_bytes=300),
    )
    assert cluster.links == (
        Link(a="x", b="y", bandwidth_bytes_per_s=2, latency_ns=2),
        Link(a="y", b="z", bandwidth_bytes_per_s=4),
    )


def test_given_bytes_win_over_defaults():
    """Tests that stash, weight stash and static bytes are taken as they stand where they are given."""
    layer = imported("layers", 0, stash_bytes=8, weight_stash_bytes=3, static_bytes=1).profile.layers[0]
    assert (layer.stash_bytes, layer.weight_stash_bytes, layer.state_bytes) == (8, 3, 1)
    layer = imported("layers", 0, stash_bytes=8).profile.layers[0]
    assert (layer.stash_bytes, layer.weight_stash_bytes) == (8, 8)


def test_measured_split_wins_over_halves():
    """Tests that a measured split of the backward pass is taken as it stands."""
    measured = imported("layers", 0, backward_ms=0.000007, input_grad_ms=0.000001, weight_grad_ms=0.000006)
    assert measured.profile.layers[0].costs[0] == cost("reference", 12, 1, 6)


def test_activation_budget_ignores_receive_buffers():
    """Tests that an activation budget, and nothing else, sets receive_buffers to 0."""
    assert imported().options == {}
    workload = imported("meta", memory_semantics="activations only")
    assert workload.options == {"receive_buffers": 0}
    assert "Memory: activations only; receive buffers are not counted." in workload.profile.provenance


def test_remarks():
    """Tests that microbatches, their size and the name of the cluster are carried over."""
    workload = imported("meta", microbatch_size=6, cluster_note="three of them")
    assert workload.num_microbatches == 4
    assert workload.profile.microbatch_size == 6
    assert workload.cluster is not None
    assert workload.cluster.name == "three of them"


def test_cluster_may_be_absent():
    """Tests that a document without cluster, microbatches, source and meta is a profile on the reference device."""
    tree = {key: TREE[key] for key in ("name", "layers", "edges")}
    workload = import_neutral(tree, source="tiny.json")
    assert (workload.cluster, workload.num_microbatches, workload.options) == (None, None, {})
    assert [cost.device_type for cost in workload.profile.layers[0].costs] == ["reference"]
    assert workload.profile.layers[0].state_bytes == 15


def test_provenance_states_every_assumption():
    """Tests that the provenance names the source and all that was assumed, and nothing that was measured."""
    told = imported().profile.provenance
    assert told.startswith("Source: measured by nobody. ")
    for assumption in ("half input gradient", "own output", "whole stash", "2.5 x the parameter bytes", "divided by s"):
        assert assumption in told
    tree = changed("meta", static_multiplier=0)
    for layer in tree["layers"]:
        layer.update(input_grad_ms=layer["backward_ms"], weight_grad_ms=0, stash_bytes=3, weight_stash_bytes=1)
    del tree["cluster"]["devices"][1]["speed"]
    told = import_neutral(tree, source="tiny.json").profile.provenance
    assert told == (
        "Source: measured by nobody. Times are per microbatch, rounded to whole nanoseconds. One size was measured: "
        "shares of a microbatch are assumed to take their part of its time."
    )


def test_samples_are_unknown_unless_stated():
    """Tests that the neutral form leaves the size of a microbatch open, and 0 is refused with field and remedy."""
    profile = imported().profile
    assert (profile.microbatch_size, profile.scaling) == (None, "linear")
    with pytest.raises(ValueError, match=r"meta\.microbatch_size = 0 is too small; give at least 1"):
        imported("meta", microbatch_size=0)


BAD: list[tuple[dict[str, Any], str]] = [
    (
        changed("layers", 1, forward_ms=-0.5),
        "tiny.json: layers[1].forward_ms = -0.5 is too small; give at least 0.0",
    ),
    (
        changed("layers", 1, backward_ms=1e8),
        "tiny.json: layers[1].backward_ms = 100000000.0 is too large; give at most 10000000.0",
    ),
    (
        changed("layers", 2, param_bytes=1.5),
        "tiny.json: layers[2].param_bytes = 1.5 is not an integer; give whole bytes",
    ),
    (
        changed("layers", 2, forward_ms="1"),
        'tiny.json: layers[2].forward_ms = "1" is not a number; give one, without quotes',
    ),
    (
        changed("layers", 0, forward_ns=5),
        "tiny.json: layers[0].forward_ns = 5 is not a known field; did you mean forward_ms, in milliseconds?",
    ),
    (
        changed("layers", 0, input_grad_ms=0.000007),
        "tiny.json: layers[0]: layer 'a': one of input_grad_ms and weight_grad_ms is missing; give both or none",
    ),
    (
        changed("layers", 0, input_grad_ms=1, weight_grad_ms=2),
        "tiny.json: layers[0].backward_ms: layer 'a': backward_ms = 7e-06 is not input_grad_ms + weight_grad_ms = 3; "
        "correct one of the three",
    ),
    (
        changed("layers", 1, input_grad_ms=0, weight_grad_ms=0.000005),
        "tiny.json: layer 'b': weight_grad_ns = 5, but the layer has no trainable weights; "
        "set it to 0, or give parameter_bytes and frozen = false",
    ),
    (
        changed(edges=[[0, 1], [1, 3]]),
        "tiny.json: edges[1] = [1, 3] leaves the 3 layers; count from 0",
    ),
    (
        changed(edges=[[0, 1], [1, 2, 2]]),
        "tiny.json: edges[1] = [3 entries] is refused; Tuple should have at most 2 items after validation, not 3",
    ),
    (
        changed(edges=[[0, 1], [1, 2], [2, 0]]),
        "tiny.json: profile 'tiny': the edges form a cycle: b -> c -> a -> b; remove one of them",
    ),
    (
        changed("cluster", "devices", 1, speed=0),
        "tiny.json: cluster.devices[1].speed = 0 is too small; give at least 0.001",
    ),
    (
        changed("cluster", links=[]),
        "tiny.json: cluster 'tiny cluster': no route from device 'x' to device 'y'; "
        "add the missing link, or remove the devices that cannot be reached",
    ),
    (
        changed(microbatches=0),
        "tiny.json: workload: num_microbatches = 0 is out of range; give an integer from 1 to 1073741824",
    ),
]


@pytest.mark.parametrize(("tree", "message"), BAD, ids=[message[11:50] for _, message in BAD])
def test_message(tree: dict[str, Any], message: str):
    """Tests that a bad document is refused with file, path, value and remedy, word for word."""
    with pytest.raises(ValueError, match=r"^tiny\.json: ") as caught:
        import_neutral(tree, source="tiny.json")
    assert str(caught.value) == message
