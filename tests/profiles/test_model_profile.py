"""What a profile refuses, and what it says then."""

import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from profiles.field_rules import MAX_BYTES, MAX_NANOSECONDS
from profiles.held_once import HeldOnce
from profiles.model_profile import (
    ActionOverhead,
    Edge,
    Layer,
    LayerCost,
    ModelProfile,
    ProbeRun,
    WidthBytes,
)


def make_cost(**changes: Any) -> LayerCost:
    return LayerCost(**{"device_type": "A100", "forward_ns": 10, "input_grad_ns": 8, "weight_grad_ns": 7} | changes)


def make_layer(name: str = "conv", **changes: Any) -> Layer:
    return Layer(**{"name": name, "costs": (make_cost(),), "parameter_bytes": 4} | changes)


def make_profile(names: str = "abc", edges: str = "ab bc", **changes: Any) -> ModelProfile:
    """A profile with one layer per letter of `names` and one edge per pair of letters in `edges`."""
    pairs = tuple(Edge(producer=a, consumer=b, bytes=1) for a, b in edges.split())
    return ModelProfile(**{"name": "net", "layers": tuple(map(make_layer, names)), "edges": pairs} | changes)


def test_a_group_as_one_device():
    """Tests that a cost stands alone with the bytes at its width, under another name if one is given."""
    wide = make_wider(parameter_bytes=3, workspace_bytes=7)
    layer = make_layer(costs=(make_cost(), make_cost(width=2, forward_ns=3, optimizer_ns=2)), wider=(wide,))
    one = layer.as_one_device(layer.costs[1], device_type="pair")
    assert one.costs == (replace(layer.costs[1], width=1, device_type="pair", backward_ns=None),)
    assert (one.state_bytes, one.parameter_bytes, one.workspace_bytes, one.wider) == (1, 3, 7, ())
    assert layer.as_one_device(layer.costs[0]).costs[0].device_type == "A100"


def test_a_group_as_one_device_keeps_every_size():
    """Tests that whatever a width states of its bytes is the layer's then, so that no field is forgotten."""
    sizes = {each.name: number for number, each in enumerate(fields(WidthBytes), 1) if each.name.endswith("_bytes")}
    sizes |= {"state_bytes": 100, "stash_bytes": 90, "workspace_bytes": 80}
    layer = make_layer(costs=(make_cost(), make_cost(width=2)), wider=(make_wider(**sizes),))
    one = layer.as_one_device(layer.costs[1])
    assert {name: getattr(one, name) for name in sizes} == sizes


def test_nothing_to_synchronise():
    """Tests that no width of a layer, and no frozen one, has a gradient left that replicas synchronise."""
    wide = make_wider(state_bytes=9, parameter_bytes=3, gradient_bytes=2)
    layer = make_layer(state_bytes=20, wider=(wide, make_wider(width=4))).unsynchronised()
    assert [layer.synchronised_bytes_at(width) for width in (1, 2, 4)] == [0, 0, None]
    frozen = make_layer(frozen=True, costs=(make_cost(weight_grad_ns=0),))
    assert frozen.unsynchronised() == frozen


def test_a_stage_trains_if_a_layer_does():
    """Tests that one layer with weights that are not frozen is enough."""
    frozen = make_layer("b", frozen=True, costs=(make_cost(weight_grad_ns=0),))
    profile = ModelProfile(name="p", layers=(make_layer("a"), frozen), edges=())
    assert profile.trains(["b", "a"])
    assert not profile.trains(["b"])


def make_wider(**changes: Any) -> WidthBytes:
    return WidthBytes(**{"width": 2, "state_bytes": 1, "stash_bytes": 1} | changes)


BROKEN: list[tuple[str, Callable[[], object], list[str]]] = [
    (
        "negative time",
        lambda: make_cost(forward_ns=-1),
        ["cost on 'A100'", "forward_ns = -1", "from 0 to 10000000000000"],
    ),
    (
        "time of hours",
        lambda: make_cost(input_grad_ns=MAX_NANOSECONDS + 1),
        ["'A100'", "input_grad_ns = 10000000000001"],
    ),
    ("time as float", lambda: make_cost(weight_grad_ns=1.5), ["weight_grad_ns = '1.5'", "not an integer", "round it"]),
    ("time as bool", lambda: make_cost(recompute_ns=True), ["recompute_ns = 'True'", "not an integer"]),
    (
        "slow fusion",
        lambda: make_cost(backward_ns=16),
        ["'A100'", "backward_ns = 16 exceeds", "= 15", "or leave it out"],
    ),
    (
        "negative overhead",
        lambda: ActionOverhead(device_type="A100", forward_ns=-1),
        ["action overhead on 'A100'", "forward_ns = -1", "from 0"],
    ),
    (
        "overhead that is not a number",
        lambda: ActionOverhead(device_type="A100", weight_grad_ns=float("nan")),
        ["action overhead on 'A100'", "weight_grad_ns = 'nan'", "not an integer"],
    ),
    (
        "overhead of one above that of two",
        lambda: ActionOverhead(device_type="A100", input_grad_ns=1, weight_grad_ns=2, backward_ns=4),
        ["action overhead on 'A100'", "backward_ns = 4 exceeds", "= 3", "measure it again"],
    ),
    (
        "overhead of one above that of two, between stages",
        lambda: ActionOverhead(device_type="A100", stages_weight_grad_ns=2, stages_backward_ns=4),
        ["action overhead on 'A100'", "stages_backward_ns = 4 exceeds", "= 2", "measure it again"],
    ),
    (
        "exchange that takes minutes",
        lambda: ActionOverhead(device_type="A100", exchange_ns=10**11),
        ["action overhead on 'A100'", "exchange_ns = 100000000000", "from 0 to 1000000000"],
    ),
    (
        "overhead twice",
        lambda: make_profile(action_overhead_ns=(ActionOverhead(device_type="A100"),) * 2),
        ["profile 'net'", "action overhead on 'A100' occurs twice"],
    ),
    ("negative bucket", lambda: make_profile(bucket_bytes=-1), ["bucket_bytes = -1", "out of range"]),
    ("negative reduction", lambda: make_profile(reduction_bytes=-1), ["reduction_bytes = -1", "out of range"]),
    (
        "together with nobody",
        lambda: make_profile(held_once=(HeldOnce(first="a", second="x"),)),
        ["held_once of 'a' and 'x'", "not two layers in topological order", "correct the names"],
    ),
    (
        "together the wrong way round",
        lambda: make_profile(held_once=(HeldOnce(first="b", second="a"),)),
        ["held_once of 'b' and 'a'", "topological order"],
    ),
    (
        "more together than there is",
        lambda: make_profile(held_once=tuple(HeldOnce(first=f, second="c", stash_bytes=3) for f in "ab")),
        ["held_once of 'a' and 'c'", "stash_bytes adds up to 3 of the second, which has 0", "state a part"],
    ),
    ("probe without time", lambda: ProbeRun(predicted_ns=1, measured_ns=0), ["probe", "measured_ns = 0", "from 1 to"]),
    ("unknown conditions", lambda: make_profile(conditions="calm"), ["conditions = 'calm'", "'busy' or 'alone'"]),
    ("no device type", lambda: make_cost(device_type=""), ["device_type = ''", "give 1 to 300 printable characters"]),
    ("zero width", lambda: make_cost(width=0), ["'A100'", "width = 0", "from 1 to 4096"]),
    ("zero samples measured", lambda: make_cost(microbatch_size=0), ["'A100'", "microbatch_size = 0", "from 1"]),
    ("unprintable name", lambda: make_layer("a\nb"), ["layer 'a\\nb'", "is not a name"]),
    ("long name", lambda: make_layer("x" * 301), ["layer 'xxx", "is not a name", "300"]),
    ("half a character", lambda: make_layer("\ud800"), ["'\\ud800'", "is not a name"]),
    (
        "huge layer",
        lambda: make_layer(parameter_bytes=MAX_BYTES + 1),
        ["layer 'conv'", "parameter_bytes = 1125899906842625"],
    ),
    ("negative state", lambda: make_layer(state_bytes=-5), ["layer 'conv'", "state_bytes = -5", "out of range"]),
    ("no cost", lambda: make_layer(costs=()), ["layer 'conv'", "costs is empty", "measure the layer"]),
    ("cost twice", lambda: make_layer(costs=(make_cost(), make_cost())), ["'conv'", "A100 width 1", "occurs twice"]),
    (
        "gradient without weights",
        lambda: make_layer(parameter_bytes=0),
        ["layer 'conv'", "weight_grad_ns = 7", "no trainable weights", "set it to 0"],
    ),
    (
        "gradient of frozen weights",
        lambda: make_layer(frozen=True),
        ["layer 'conv'", "weight_grad_ns = 7", "frozen = false"],
    ),
    (
        "weight stash beyond stash",
        lambda: make_layer(stash_bytes=3, weight_stash_bytes=4),
        ["layer 'conv'", "weight_stash_bytes = 4 exceeds stash_bytes = 3", "lower it"],
    ),
    (
        "fixed workspace beyond workspace",
        lambda: make_layer(workspace_bytes=3, fixed_workspace_bytes=4),
        ["layer 'conv'", "fixed_workspace_bytes = 4 exceeds workspace_bytes = 3", "raise workspace_bytes"],
    ),
    (
        "checkpoint beyond stash",
        lambda: make_layer(stash_bytes=3, checkpoint_bytes=4),
        ["layer 'conv'", "checkpoint_bytes = 4 exceeds stash_bytes = 3", "lower it"],
    ),
    ("width twice", lambda: make_layer(wider=(make_wider(), make_wider())), ["layer 'conv'", "width '2' occurs twice"]),
    ("wider of no width", lambda: make_wider(width=0), ["width = 0", "from 1 to 4096"]),
    (
        "wider weight stash",
        lambda: make_wider(weight_stash_bytes=2),
        ["bytes at width 2", "weight_stash_bytes = 2 exceeds"],
    ),
    ("negative edge", lambda: Edge(producer="a", consumer="b", bytes=-1), ["edge 'a' -> 'b'", "bytes = -1"]),
    (
        "negative gradient",
        lambda: Edge(producer="a", consumer="b", bytes=1, gradient_bytes=-2),
        ["edge 'a' -> 'b'", "gradient_bytes = -2"],
    ),
    (
        "loop",
        lambda: Edge(producer="a", consumer="a", bytes=1),
        ["edge 'a' -> 'a'", "cannot feed itself", "remove the edge"],
    ),
    ("no layers", lambda: make_profile("", ""), ["profile 'net'", "layers is empty", "at least one layer"]),
    ("layer twice", lambda: make_profile("aa", ""), ["profile 'net'", "layer 'a' occurs twice", "rename or remove"]),
    ("edge twice", lambda: make_profile("ab", "ab ab"), ["profile 'net'", "'a' -> 'b'", "occurs twice"]),
    (
        "unknown layer",
        lambda: make_profile("ab", "ab bz"),
        ["profile 'net'", "edges[1]", "unknown layer 'z'", "correct the name"],
    ),
    (
        "cycle",
        lambda: make_profile("abc", "ab bc ca"),
        ["profile 'net'", "cycle", "b -> c -> a -> b", "remove one of them"],
    ),
    ("no samples", lambda: make_profile(microbatch_size=0), ["profile 'net'", "microbatch_size = 0", "from 1"]),
    ("negative optimizer", lambda: make_profile(optimizer_ns=-1), ["profile 'net'", "optimizer_ns = -1"]),
    ("no name", lambda: make_profile(name=""), ["profile ''", "name = ''", "is not a name"]),
]


@pytest.mark.parametrize(("build", "fragments"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_refusal_names_value_owner_and_remedy(build: Callable[[], object], fragments: list[str]):
    """Tests that every broken rule raises ValueError with the owner, the value and what to do."""
    with pytest.raises(ValueError, match=".*".join(map(re.escape, fragments[:1]))) as caught:
        build()
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_cycle_of_many_layers_is_cut_short():
    """Tests that the message of a cycle through 26 layers shows its ends only."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    with pytest.raises(ValueError, match="cycle") as caught:
        make_profile(letters, " ".join(a + b for a, b in zip(letters, letters[1:] + "a", strict=True)))
    assert " -> ... -> " in str(caught.value)
    assert len(str(caught.value)) < 200


def test_names_that_look_like_arrows_do_not_collide():
    """Tests that the edges `a -> b` to `c` and `a` to `b -> c` are two edges."""
    layers = tuple(make_layer(name) for name in ("a", "a -> b", "b -> c", "c"))
    edges = (Edge(producer="a -> b", consumer="c", bytes=1), Edge(producer="a", consumer="b -> c", bytes=1))
    assert len(ModelProfile(name="net", layers=layers, edges=edges).edges) == 2


def test_order_keeps_the_listing_where_edges_allow():
    """Tests that layers stand as listed unless an edge points backward."""
    assert make_profile("cab", "").topological_order == ("c", "a", "b")
    assert make_profile("cab", "bc").topological_order == ("a", "b", "c")
    assert make_profile("dcba", "ab ac bd cd").topological_order == ("a", "c", "b", "d")


@pytest.mark.parametrize(
    ("edges", "is_chain"), [("ab bc", True), ("ab bc ac", False), ("ab", False), ("ac ab", False), ("", False)]
)
def test_chain(edges: str, is_chain: bool):
    """Tests that a chain is a profile in which each layer feeds the next and nothing else."""
    assert make_profile("abc", edges).is_chain is is_chain


def test_one_layer_is_a_chain():
    """Tests that a single layer is a chain."""
    assert make_profile("a", "").is_chain


def test_fused_backward_defaults_to_the_sum():
    """Tests that B is I + W unless it was measured."""
    assert make_cost().fused_backward_ns == 15
    assert make_cost(backward_ns=12).fused_backward_ns == 12


def test_frozen_layers_synchronise_nothing():
    """Tests that only trainable weights have a gradient to synchronise."""
    still = (make_cost(weight_grad_ns=0),)
    assert make_layer().synchronised_bytes == 4
    assert make_layer(frozen=True, costs=still).synchronised_bytes == 0
    assert not make_layer(parameter_bytes=0, costs=still).is_trainable


def test_bytes_at_a_width():
    """Tests that width 1 is the layer itself, other widths are as measured, and the rest is unknown."""
    layer = make_layer(wider=(make_wider(),))
    assert layer.bytes_at(1) is layer
    assert layer.bytes_at(2) == make_wider()
    assert layer.bytes_at(4) is None


def test_gradients_are_as_large_as_the_tensor_unless_given():
    """Tests that an edge's gradient_bytes has three readings: as the tensor, as given, none at all."""
    sizes = [Edge(producer="a", consumer="b", bytes=5, gradient_bytes=given) for given in (None, 3, 0)]
    assert [edge.backward_bytes for edge in sizes] == [5, 3, 0]
    assert [edge.has_gradient for edge in sizes] == [True, True, False]


def test_scaling_of_old_documents():
    """Tests that a profile that says nothing scales where no layer was measured at several sizes."""
    one, two = make_cost(), make_cost(microbatch_size=2)
    assert make_profile(layers=(make_layer(costs=(one,)),), edges="", microbatch_size=4).scales_linearly
    both = make_profile(layers=(make_layer(costs=(one, two)),), edges="", microbatch_size=4)
    assert not both.scales_linearly
    assert replace(both, scaling="linear").scales_linearly


def test_sizes_without_a_size():
    """Tests that costs at stated sizes need the size of a microbatch."""
    with pytest.raises(ValueError, match=r"microbatch_size = null, but layer .* has a cost at microbatch_size = 2"):
        make_profile(layers=(make_layer(costs=(make_cost(microbatch_size=2),)),), edges="", microbatch_size=None)
