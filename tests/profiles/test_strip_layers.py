"""Profiles without some of their layers: tests of profiles/strip_layers.py."""

from dataclasses import replace

from profiles.held_once import HeldOnce
from profiles.model_profile import ModelProfile
from profiles.strip_layers import without_layers
from tests.planner.builders import make_edge, make_layer


def profile(edges: str) -> ModelProfile:
    """Layers a to d; an edge has the bytes of its producer's place in the alphabet."""
    sizes = {name: number + 1 for number, name in enumerate("abcd")}
    made = [make_edge(f"{ends[0]} {ends[1]}", num_bytes=sizes[ends[0]]) for ends in edges.split()]
    return ModelProfile(name="p", layers=tuple(make_layer(name) for name in "abcd"), edges=tuple(made))


def ends(stripped: ModelProfile) -> dict[str, int]:
    """Edges with their bytes."""
    return {edge.producer + edge.consumer: edge.bytes for edge in stripped.edges}


def test_edges_go_past():
    """Tests that a consumer consumes what the missing layer did, with the bytes at the producer, in a chain of two."""
    stripped = without_layers(profile("ab bc cd"), ["b", "c"])
    assert [layer.name for layer in stripped.layers] == ["a", "d"]
    assert ends(stripped) == {"ad": 1}


def test_edges_that_are_there_stay():
    """Tests that an edge beside the missing layer keeps its own bytes, and that branches are joined."""
    assert ends(without_layers(profile("ac bc cd ad"), ["c"])) == {"ad": 1, "bd": 2}


def test_a_gradient_needs_both_edges():
    """Tests that an edge past others has a gradient only where both of them have one."""
    made = [make_edge("a b", num_bytes=4), make_edge("b c", num_bytes=4, gradient_bytes=0)]
    layers = tuple(make_layer(name) for name in "abc")
    stripped = without_layers(ModelProfile(name="p", layers=layers, edges=tuple(made)), {"b"})
    assert not stripped.edges[0].has_gradient


def test_what_is_held_with_a_missing_layer_goes():
    """Tests that of what layers hold together only pairs of layers that are left stay."""
    pairs = tuple(HeldOnce(first=first, second=second) for first, second in ("ab", "ac", "bd"))
    stripped = without_layers(replace(profile("ab bc cd"), held_once=pairs), ["b"])
    assert stripped.held_once == pairs[1:2]
