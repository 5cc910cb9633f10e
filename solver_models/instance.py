"""The problem in ticks and units: integers only, no names. One tick is one nanosecond, one unit one byte.

`planner/lowering.py` makes these from a `Problem`; nothing here knows what a pipeline plan document looks like.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver_models.device_rows import KIND, MEMORY, DeviceRow
from solver_models.simulation.columns import FORWARD_SIZE, SOURCE, TARGET

Integers = NDArray[np.int64]
ShortIntegers = NDArray[np.int32]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FORWARD, INPUT_GRAD, WEIGHT_GRAD, BACKWARD = 0, 1, 2, 3
"""Codes of the action kinds F, I, W and B in words."""

ShardChoice = Literal["together", "allow", "always"]
"""All stages with several replicas shard the optimizer's state, or none does; any may; all do."""

NO_TABLE = -1
"""In the place of a table of work: a stage may not have so many replicas (their samples would not be whole)."""

DeviceOrder = list[tuple[int, int, int]]
"""The order of one device: (kind, stage, microbatch) triples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReplica:
    """One replica of one stage: a sequence of F, I, W (or B) per microbatch on one device (or one group as a whole)."""

    TIMES: ClassVar = ("forward", "input_grad", "weight_grad", "backward")
    SIZES: ClassVar = ("held", "stash", "whole_backward", "weight_stash", "workspace", "weight_workspace")
    """Fields in ticks, and in units."""
    stage: int
    """Stage number."""
    device: int
    """Device (resource) that runs it; stage replicas of several stages may share one."""
    forward: int
    """Ticks of F."""
    input_grad: int
    """Ticks of I."""
    weight_grad: int
    """Ticks of W; there is no W if `has_weight_grad` is false."""
    backward: int
    """Ticks of B, at most I + W."""
    has_weight_grad: bool
    """Whether the stage replica has W actions."""
    held: int
    """Units taken at the start of F, given back at the end of I (except `weight_stash`) or B."""
    stash: int
    """Units held while I runs (`held` unless activations are recomputed)."""
    whole_backward: int
    """Units held while B runs: at most `stash`."""
    weight_stash: int
    """Units kept from the end of I to the end of W, a workspace that is kept included."""
    workspace: int
    """Units held only while F, I or B runs."""
    weight_workspace: int
    """Units held only while W runs."""

    def extra(self, kind: int) -> int:
        """Units that an action of this kind needs while it runs, beside the stashes held until then (and by F)."""
        if kind == FORWARD:
            return self.workspace
        if kind == WEIGHT_GRAD:
            return self.weight_workspace
        return (self.whole_backward if kind == BACKWARD else self.stash) - self.held + self.workspace

    def steps(self, kind: int) -> tuple[int, int]:
        """Units that an action of this kind adds while it runs, and from its end on."""
        during = self.extra(kind) + (self.held if kind == FORWARD else 0)
        return during, (self.held, self.weight_stash - self.held, -self.weight_stash, -self.held)[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What one stage replica sends another for every microbatch, after its F (forward) or its I or B (backward)."""

    sender: int
    """Index of the sending stage replica."""
    receiver: int
    """Index of the stage replica whose F (forward) or whose I or B (backward) waits for it."""
    is_backward: bool
    """Whether it is a gradient."""
    duration: int
    """Ticks on the links; 0 inside a device."""
    links: tuple[int, ...]
    """Links it occupies for its whole duration; empty inside a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInstance:
    """Partition and mapping are fixed; only the order of actions on every device is open."""

    num_microbatches: int
    """Identical microbatches, taken in order by every stage replica."""
    replicas: tuple[StageReplica, ...]
    """Ordered by stage, then replica."""
    transfers: tuple[Transfer, ...]
    """All transfers, same-device ones included (duration 0, no links)."""
    devices: tuple[DeviceRow, ...]
    """What everything resident leaves of every device."""
    synchronisation: tuple[int, ...]
    """Per stage: ticks of the all-reduce after the last action of its stage replicas; 0 if none."""
    tail: int
    """Ticks after everything else (the optimizer step)."""
    can_split: bool
    """Whether I and W may run apart; otherwise only B."""
    objective: Literal["makespan", "span"]
    """The figure that is minimised."""

    def free_from(self, replica: StageReplica) -> int:
        """The tick from which the device of a stage replica may run actions."""
        return self.devices[replica.device].free_from


class Layers(NamedTuple):
    """The open problem as kernels read it: L layers, E edges, D stage replica holders, K link resources.

    What holds a stage replica is a device or, where widths are open, a group of devices that acts as one
    (`WideGroups`); all of them are called devices here. T counts the types, at the first width, then at the next of V.
    """

    work: Integers
    """[tables, 5, T, L] ticks of F, I, W, B and recomputation of a microbatch, summed over the replicas of a stage."""
    host: Integers
    """[2, tables, 5, T, L] ticks that hosts take to ask for these, and from a host's beginning to the end at least;
    [2, 0, 5, T, L] where that takes no time."""
    measured: Integers
    """[tables, T, L] 1 where the layer has a cost (and bytes) on the type at the width."""
    table_of_replicas: Integers
    """[max replicas + 1] index into `work`, or `NO_TABLE` where a stage may not have so many replicas."""
    overhead: Integers
    """[2, T, 4] ticks that F, I, W and B cost beyond their layers, in plans of one stage and of several."""
    once: Integers
    """[`ONCE`, T, L] ticks per iteration, which the devices of a group take in equal parts."""
    sizes: Integers
    """[V, `SIZES`, L] units on each device."""
    gradient: Integers
    """[V, 2, L] units that replicas synchronise: stated for the width, and those to be cut into equal parts."""
    weights: Integers
    """[V, 2, L] units that sharding replicas gather after a step, as `gradient`."""
    together: Integers
    """[P, columns] units that pairs of layers hold once where they are in one stage of single devices."""
    trainable: Integers
    """[L] 1 if the layer has a W."""
    frozen: Integers
    """[L] 1 if it is frozen."""
    edges: Integers
    """[E, 6] producer, consumer, forward units, backward units, 1 if a gradient flows, rank; sorted by producer.

    Transfers between two stage replicas that are ready together go in the order of the least rank of their edges.
    """
    devices: Integers
    """[D, columns] rows as in `DeviceRow`, of which a kind is a type at a width."""
    width_row: Integers
    """[D] index into V."""
    member_start: Integers
    """[D + 1] where the members of a group begin in `members`."""
    members: Integers
    """Devices of the groups; a single device is its own only member."""
    latency: Integers
    """[D, D] ticks of the route."""
    bandwidth: Integers
    """[D, D] units per 10**9 ticks of the route."""
    route_start: Integers
    """[D * D + 1] where the links of the route from a to b begin in `route_links`, at a * D + b."""
    route_links: Integers
    """Link resources of all routes."""
    options: Integers
    """Values of the evaluator's `OPTIONS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WideGroups:
    """G groups of several devices that may share the layers of a stage, over V - 1 widths above 1.

    Group g is called number D + g wherever devices are numbered. Candidates of the joint search use groups that are
    equal or disjoint.
    """

    groups: tuple[tuple[int, ...], ...]
    """Device numbers of every group; transfers go to and from the first."""
    width_row: Integers
    """[G] number of its width, from 1."""
    widths: tuple[int, ...]
    """The widths, ascending, without 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeKinds:
    """K ways in which a layer may recompute: 0 not at all, 1 fully, others as the profile states them.

    Over T types at the first width, then at the next of V.
    """

    extra: Integers
    """[K, tables, V * T, L] ticks of recomputation of a microbatch, as in `Layers.work`."""
    kept: Integers
    """[K, V, L] units that F leaves of the stash."""
    stated: Integers
    """[K, L] 1 if the layer may recompute so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The whole problem: which layers go where, and in which order, is open.

    Layers are numbered in a topological order, L of them; D devices of T types.
    """

    layers: Layers
    """What layers, devices and routes are like; held by the devices alone, at all widths."""
    num_microbatches: int
    """Identical microbatches per iteration."""
    pinned: Integers
    """[L] device that must hold the layer, or -1 where it is free."""
    given_stages: Integers | None
    """[L] stage of every layer, if the partition is given."""
    given_groups: tuple[tuple[int, ...], ...] | None
    """Devices (or groups, see `WideGroups`) of every stage, if they are given too."""
    objective: Literal["makespan", "span"]
    """The figure that is minimised."""
    rules: Mapping[str, int]
    """The question's options that are on or numbers, by name; kernels know some (`OPTIONS` of the evaluator)."""
    can_halve: bool = True
    """Whether half of an I takes half of its work, on whole samples."""
    wide: WideGroups | None = None
    """Groups of several devices, if widths are open."""
    shard_choice: Literal["never"] | ShardChoice = "never"
    """Which stages with several replicas shard the optimizer's state."""
    recompute_kinds: RecomputeKinds | None = None
    """How single layers may recompute; None: all of a stage do so fully, or none."""

    @property
    def num_layers(self) -> int:
        """The number of layers, L."""
        return len(self.layers.trainable)

    @property
    def num_devices(self) -> int:
        """The number of devices, D."""
        return len(self.layers.devices)

    @property
    def num_types(self) -> int:
        """The number of device types, T."""
        return int(self.layers.work.shape[2]) // len(self.layers.sizes)

    @property
    def sizes(self) -> Integers:
        """[`SIZES`, L] units on single devices."""
        found: Integers = self.layers.sizes[0]
        return found

    @property
    def gradient(self) -> Integers:
        """[L] units that replicas of single devices synchronise."""
        found: Integers = self.layers.gradient[0, 0]
        return found

    @property
    def crossing(self) -> Integers:
        """[2, L + 1] units that cross each boundary of layers forward and backward, every edge for itself."""
        units, edges = np.zeros((2, self.num_layers + 2), np.int64), self.layers.edges
        for direction in range(2):
            np.add.at(units[direction], edges[:, SOURCE] + 1, edges[:, FORWARD_SIZE + direction])
            np.add.at(units[direction], edges[:, TARGET] + 1, -edges[:, FORWARD_SIZE + direction])
        return np.cumsum(units, axis=1)[:, :-1]

    @property
    def work(self) -> Integers:
        """[tables, 5, T, L] ticks on single devices."""
        return self.layers.work[:, :, : self.num_types]

    @property
    def measured(self) -> Integers:
        """[tables, T, L] 1 where the layer has a cost on the type; where widths are open, at all of them."""
        return self.layers.measured if self.wide is not None else self.layers.measured[:, : self.num_types]

    @property
    def device_type(self) -> Integers:
        """[D] type index of every device."""
        return self.layers.devices[:, KIND]

    @property
    def capacity(self) -> Integers:
        """[D] memory units of every device."""
        return self.layers.devices[:, MEMORY]

    @property
    def may_choose_shards(self) -> bool:
        """Whether stages may shard or not."""
        return self.shard_choice in ("together", "allow")

    @property
    def allowed_replicas(self) -> tuple[int, ...]:
        """The numbers of replicas that a stage may have, ascending; 1 is always one of them."""
        tables = self.layers.table_of_replicas.tolist()
        return tuple(count for count in range(1, len(tables)) if tables[count] != NO_TABLE)

    @property
    def has_gaps(self) -> bool:
        """Whether a layer has no cost on some type, width or number of replicas."""
        return bool((self.measured == 0).any())

    def members_of(self, holder: int) -> tuple[int, ...]:
        """The devices of a holder of stage replicas: itself, or the members of the group of that number."""
        if holder < self.num_devices:
            return (holder,)
        assert self.wide is not None
        return self.wide.groups[holder - self.num_devices]
