"""A profile without some of its layers, whose edges go past them."""

from collections.abc import Collection
from dataclasses import replace
from itertools import product

from profiles.model_profile import Edge, ModelProfile


def without_layers(profile: ModelProfile, names: Collection[str]) -> ModelProfile:
    """The other layers, of which there must be one; a consumer of a layer left out consumes what that one consumed.

    So of two layers that are left one comes before the other wherever it did. An edge past others has the bytes of the
    edge at its producer, and a gradient where both of the edges that it stands for have one.
    """
    kept = {(edge.producer, edge.consumer): edge for edge in profile.edges}
    for name in (name for name in profile.topological_order if name in names):
        into = [edge for edge in kept.values() if edge.consumer == name]
        out = [edge for edge in kept.values() if edge.producer == name]
        kept = {ends: edge for ends, edge in kept.items() if name not in ends}
        for before, after in product(into, out):
            kept.setdefault((before.producer, after.consumer), _past(before, after))
    layers = tuple(layer for layer in profile.layers if layer.name not in names)
    together = tuple(each for each in profile.held_once if not {each.first, each.second} & set(names))
    return replace(profile, layers=layers, edges=tuple(kept.values()), held_once=together, measurements=())


def _past(before: Edge, after: Edge) -> Edge:
    """One edge for two in a row."""
    gradient_bytes = before.gradient_bytes if after.has_gradient else 0
    return replace(before, consumer=after.consumer, gradient_bytes=gradient_bytes)
