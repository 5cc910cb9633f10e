"""What the complete programme needs to know of a problem: which sets of layers may be a stage, and what all costs.

Every figure is asked of the caller's cost model for whole stages, so that nothing is added up a second time here.
Layers, devices and sets are numbered; ticks are nanoseconds and units bytes, or coarser ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from solver_models.device_rows import DeviceRow


class ActionTimes(NamedTuple):
    """Ticks of the actions of a stage on a device type."""

    forward: int
    """F."""
    input_grad: int
    """I."""
    weight_grad: int
    """W."""
    backward: int
    """B."""


class Sizes(NamedTuple):
    """Units that a replica of a stage holds."""

    state: int
    """Always."""
    bucket: int
    """While its gradients are reduced; a device holds the largest of its buckets."""
    held: int
    """From the start of F to the end of I or B."""
    stash: int
    """While I or B runs."""
    weight_stash: int
    """From the end of I to the end of W."""
    workspace: int
    """While F, I or B runs."""
    weight_workspace: int
    """While W runs."""


class Traffic(NamedTuple):
    """What one stage sends another per microbatch."""

    forward: int
    """Units of activations."""
    backward: int
    """Units of gradients."""
    has_gradient: bool
    """Whether gradients flow at all."""


class DeviceTransfer(NamedTuple):
    """A transfer between two devices."""

    duration: int
    """Ticks."""
    links: frozenset[int]
    """The links that it occupies; none if it takes no time."""


Share = tuple[int, int]
"""A part of the samples of a microbatch, as a fraction."""

Kind = tuple[int, bool]
"""Number of replicas, and whether the stage recomputes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSet:
    """Layers that may be a stage."""

    layers: tuple[int, ...]
    """Their numbers."""
    has_weight_grad: bool
    """Whether the stage has W actions."""
    times: Mapping[tuple[int, Kind], ActionTimes]
    """By device type and kind of stage; missing where something was not measured."""
    sizes: Mapping[Kind, Sizes]
    """By kind of stage."""
    synchronisation: Mapping[int, int]
    """Ticks of the all-reduce by assignment, where it takes any."""
    steps: Mapping[int, int]
    """Ticks of the optimizer's step by device type, where it takes any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteInstance:
    """The whole problem, small enough to be written down."""

    num_microbatches: int
    """Microbatches, taken in order by every stage."""
    num_layers: int
    """Layers, in a topological order."""
    devices: tuple[DeviceRow, ...]
    num_slots: int
    """Most stages of a plan."""
    edges: tuple[tuple[int, int], ...]
    """(producer, consumer) layers."""
    sets: tuple[LayerSet, ...]
    """Sets of layers that may form a stage."""
    assignments: tuple[tuple[int, ...], ...]
    """Device of every replica, for each device assignment of a stage."""
    slot_sets: tuple[tuple[int, ...], ...]
    """Per slot, indices of the sets of layers allowed in it."""
    slot_assignments: tuple[tuple[int, ...], ...]
    """Per slot, indices of the device assignments allowed for it."""
    set_assignments: Mapping[int, frozenset[int]]
    """Per restricted set of layers, the indices of its allowed assignments; others may take all."""
    kinds: tuple[Kind, ...]
    """Kinds of stages: recomputation and sharding."""
    traffic: tuple[Traffic, ...]
    """The kinds of traffic between two stages."""
    traffic_of: Mapping[tuple[int, int], int]
    """Between a set and a later one, where there is any."""
    shares: Mapping[tuple[int, int, int, int], Share]
    """Of the samples, by number and replicas of the sender, and of the receiver, where there are any."""
    transfers: Mapping[tuple[int, bool, Share, int, int], DeviceTransfer]
    """By traffic, whether it is backward, share of the samples, sending and receiving device."""
    buffers: Mapping[tuple[int, bool, int], int]
    """Units of receive buffers by traffic, whether it is backward, and number of receiving replicas."""
    tail: int
    """Ticks after everything else, beside the optimizer's steps of the layers of a device."""
    rules: Mapping[str, int]
    """The question's options that are on or numbers, by name."""
    horizon: int
    """Ticks that no plan worth looking at takes longer than."""

    @property
    def has_instant_actions(self) -> bool:
        """Whether some action may take no tick, so that several of a device may start at once."""
        return any(0 in (t if each.has_weight_grad else t[:2]) for each in self.sets for t in each.times.values())
