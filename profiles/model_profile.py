"""What the layers of a model cost: measured times and bytes as frozen data.

Every time is an integer number of nanoseconds, every size an integer number of bytes, and both are *per microbatch* of
`ModelProfile.microbatch_size` samples unless a field says otherwise.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Annotated, Literal

from profiles.assumptions import Assumptions
from profiles.degrees import Degrees
from profiles.documents.strict_record import StrictRecord
from profiles.field_rules import (
    MAX_NAME_LENGTH,
    MAX_NANOSECONDS,
    Bytes,
    Name,
    Nanoseconds,
    NotEmpty,
    Samples,
    Whole,
    Width,
    require_distinct,
    require_fields,
)
from profiles.held_once import HeldOnce, require_held_once
from profiles.host_times import HostTime, require_host_times

MAX_EXCHANGES, MAX_EXCHANGE_NS = 10**4, 10**9
"""Most exchanges of one layer, and the longest that one may take, so that sums stay as small as other times."""

Scaling = Literal["linear", "measured"]
"""What a cost is at a number of samples outside the measured ones: `linear`: in proportion from the nearest one;
`measured`: there is none, and no stage works on so many samples."""

_Measured = Annotated[int, Whole("nanoseconds", least=-MAX_NANOSECONDS, most=MAX_NANOSECONDS)]
"""A time as a run took it."""

GROWING = ("stash_bytes", "weight_stash_bytes", "checkpoint_bytes")
"""Bytes of a layer that grow in proportion to the samples; but for a fixed part its workspace does so, upwards."""

FULL = "full"
"""The kind of recomputation that keeps a layer's inputs only: `recompute_ns` and `checkpoint_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeTime(StrictRecord):
    """What another kind of recomputation than the full one takes."""

    kind: Name
    """Its name, e.g. `selective`."""
    recompute_ns: Nanoseconds
    """Extra time before I or B when the layer recomputes so."""

    def __post_init__(self) -> None:
        _require_kind(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeBytes(StrictRecord):
    """What another kind of recomputation than the full one leaves of a layer's stash."""

    kind: Name
    """Its name, e.g. `selective`."""
    checkpoint_bytes: Bytes
    """What remains of the stash when the layer recomputes so."""

    def __post_init__(self) -> None:
        _require_kind(self)


def _require_kind(entry: RecomputeTime | RecomputeBytes) -> None:
    owner = f"recomputation {str(entry.kind)[:80]!r}"
    require_fields(owner, entry)
    if entry.kind == FULL:
        raise ValueError(
            f"{owner}: kind = {FULL!r} is stated by recompute_ns and checkpoint_bytes of the layer; use these, or "
            "another name"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost(StrictRecord):
    """Times of one layer, measured on one device type at one width and one microbatch size."""

    ONCE = ("optimizer_ns",)
    """Times once per iteration, of trained layers alone: one number per device type."""
    device_type: Name
    """The device type the times were measured on, e.g. `A100`."""
    width: Width = 1
    """Devices (GPUs) or cores (CPU hosts) that worked on the layer together."""
    microbatch_size: Samples | None = None
    """Samples per microbatch at which the times were measured; None: the profile's own `microbatch_size`."""
    forward_ns: Nanoseconds
    """F: the forward pass of one microbatch."""
    input_grad_ns: Nanoseconds
    """I: the gradient with respect to the layer's input."""
    weight_grad_ns: Nanoseconds
    """W: the gradient with respect to the layer's weights; 0 for a layer without trainable weights."""
    backward_ns: Annotated[int, Whole("nanoseconds", most=2 * MAX_NANOSECONDS)] | None = None
    """B: both gradients in one fused call, at most I + W; None: I + W (no fusion gain measured)."""
    recompute_ns: Nanoseconds = 0
    """Extra time before I or B when the stage recomputes its activations."""
    recompute_kinds: tuple[RecomputeTime, ...] = ()
    """The same for other kinds of recomputation, those of the layer's `recompute_kinds`."""
    optimizer_ns: Nanoseconds = 0
    """The optimizer's step on all weights of the layer, once per iteration: one number per device type, whatever the
    width and the number of samples; 0 for a layer without trainable weights."""
    host: tuple[HostTime, ...] = ()
    """What the host takes to ask for the kernels of each action, where it works beside an accelerator whose times are
    those above; empty: both are one."""

    def __post_init__(self) -> None:
        owner = f"cost on {self.device_type!r}"
        require_fields(owner, self)
        if self.backward_ns is not None and self.backward_ns > self.input_grad_ns + self.weight_grad_ns:
            raise ValueError(
                f"{owner}: backward_ns = {self.backward_ns} exceeds input_grad_ns + weight_grad_ns = "
                f"{self.input_grad_ns + self.weight_grad_ns}; a fused backward is at most their sum: "
                "measure it again or leave it out"
            )
        require_distinct(f"{owner}: recomputation", (entry.kind for entry in self.recompute_kinds))
        if self.host:
            self._require_host(owner)

    def _require_host(self, owner: str) -> None:
        """Host times belong to these actions and kinds of recomputation, none of which is called like an action."""
        kinds = {entry.kind: entry.recompute_ns for entry in self.recompute_kinds}
        for kind in kinds.keys() & set("FIWB"):
            raise ValueError(f"{owner}: recomputation {kind!r} has the name of an action; rename it, or leave host out")
        actions = {"F": self.forward_ns, "I": self.input_grad_ns, "W": self.weight_grad_ns, "B": self.fused_backward_ns}
        require_host_times(owner, self.host, card_ns=actions | {FULL: self.recompute_ns} | kinds)

    @property
    def fused_backward_ns(self) -> int:
        """B in nanoseconds: as measured, else I + W."""
        return self.input_grad_ns + self.weight_grad_ns if self.backward_ns is None else self.backward_ns

    def with_recomputation(self, change: Callable[[int], int]) -> "LayerCost":
        """The cost with the times of all kinds of recomputation changed."""
        kinds = tuple(replace(entry, recompute_ns=change(entry.recompute_ns)) for entry in self.recompute_kinds)
        return replace(self, recompute_ns=change(self.recompute_ns), recompute_kinds=kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthBytes(StrictRecord):
    """Bytes that one layer holds on *each* device of a group of `width` devices."""

    width: Width
    """Number of devices (or cores) that share the layer."""
    state_bytes: Bytes
    """Parameters, gradients and optimizer state resident on each device, and what else stays there."""
    stash_bytes: Bytes
    """Held from the start of F to the end of I, per microbatch."""
    weight_stash_bytes: Bytes = 0
    """The part of the stash that stays until the end of W."""
    checkpoint_bytes: Bytes = 0
    """What remains of the stash when the stage recomputes."""
    recompute_kinds: tuple[RecomputeBytes, ...] = ()
    """The same for other kinds of recomputation, those of the layer."""
    workspace_bytes: Bytes = 0
    """Held only while an action runs."""
    fixed_workspace_bytes: Bytes = 0
    """The part of the workspace that does not grow with the samples."""
    parameter_bytes: Bytes | None = None
    """Weights on each device, which replicas synchronise; None: the layer's own, in equal parts."""
    gradient_bytes: Bytes | None = None
    """Their gradients on each device, if the layer states its own; None: the layer's, in equal parts."""
    optimizer_bytes: Bytes | None = None
    """The optimizer's state on each device; None: not distinguished, it cannot be divided among replicas."""

    def __post_init__(self) -> None:
        owner = f"bytes at width {self.width}"
        require_fields(owner, self)
        _require_parts(owner, self)
        _require_parts_of_state(owner, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(StrictRecord):
    """One profiled unit: a node of the model's graph."""

    name: Name
    """Unique within the profile."""
    costs: Annotated[tuple[LayerCost, ...], NotEmpty("measure the layer on at least one device type")]
    """What was measured, one entry per (device type, width, microbatch size)."""
    parameter_bytes: Bytes = 0
    """Bytes of the weights that are trained, or of all if `frozen`."""
    gradient_bytes: Bytes | None = None
    """Bytes of their gradients, which replicas synchronise; None: as many as the weights have."""
    optimizer_bytes: Bytes | None = None
    """Bytes of the optimizer's state, master weights included, which replicas may divide among themselves; None: not
    distinguished (documents of version 1), it cannot be divided."""
    state_bytes: Bytes = 0
    """Parameters + gradients + optimizer state that stay resident on a device of width 1, and what else does: weights
    that are not trained, buffers."""
    stash_bytes: Bytes = 0
    """Held from the start of F to the end of I, per microbatch."""
    weight_stash_bytes: Bytes = 0
    """The part of the stash that stays until the end of W; 0 for a layer without W."""
    checkpoint_bytes: Bytes = 0
    """What remains of the stash when the stage recomputes."""
    recompute_kinds: tuple[RecomputeBytes, ...] = ()
    """The same for other kinds of recomputation, of each of which every cost states the time."""
    workspace_bytes: Bytes = 0
    """Held only while an action of the layer runs."""
    fixed_workspace_bytes: Bytes = 0
    """The part of the workspace that does not grow with the samples: gradients of weights on their way, say."""
    frozen: bool = False
    """The weights are not trained: no W and no gradient to synchronise."""
    splittable: bool = True
    """Whether the executor can put the weight gradients off; otherwise they are computed within I, and W is empty."""
    unsplit_module: str = ""
    """Class of the module whose weights keep the layer from being split, or their names; empty if it can be."""
    forward_exchanges: Annotated[int, Whole("exchanges", most=MAX_EXCHANGES)] = 0
    """How often in F the replicas of its stage tell each other of their samples (batch norms), per microbatch."""
    backward_exchanges: Annotated[int, Whole("exchanges", most=MAX_EXCHANGES)] = 0
    """The same in I or B; no W waits for other replicas."""
    wider: tuple[WidthBytes, ...] = ()
    """The same bytes at widths above 1, one entry per width."""

    def __post_init__(self) -> None:
        owner = f"layer {str(self.name)[:MAX_NAME_LENGTH]!r}"
        require_fields(owner, self)
        _require_parts(owner, self)
        _require_parts_of_state(owner, self)
        require_distinct(
            f"{owner}: cost of", (f"{c.device_type} width {c.width} size {c.microbatch_size}" for c in self.costs)
        )
        require_distinct(f"{owner}: wider entry of width", (str(w.width) for w in self.wider))
        if not self.is_trainable:
            for cost, field in itertools.product(self.costs, ("weight_grad_ns", *LayerCost.ONCE)):
                if getattr(cost, field):
                    raise ValueError(
                        f"{owner}: {field} = {getattr(cost, field)}, but the layer has no trainable weights; "
                        "set it to 0, or give parameter_bytes and frozen = false"
                    )
        self._require_one_step(owner)
        self._require_same_kinds(owner)

    def _require_same_kinds(self, owner: str) -> None:
        """What a kind of recomputation leaves and takes is stated at every width and in every cost, or nowhere."""
        known = {entry.kind for entry in self.recompute_kinds}
        stated = [
            (f"the cost on {cost.device_type!r} at width {cost.width}", {each.kind for each in cost.recompute_kinds})
            for cost in self.costs
        ]
        stated += [(f"wider at width {w.width}", {each.kind for each in w.recompute_kinds}) for w in self.wider]
        for where, kinds in stated:
            for kind in sorted(known ^ kinds):
                raise ValueError(
                    f"{owner}: recompute_kinds has {kind!r} either in the layer or in {where}, but not in both; state "
                    "its checkpoint_bytes in the layer (and at every width) and its recompute_ns in every cost"
                )

    def _require_one_step(self, owner: str) -> None:
        """What comes once per iteration is stated once per device type, or the same each time."""
        stated: dict[tuple[str, str], int] = {}
        for cost, field in itertools.product(self.costs, LayerCost.ONCE):
            time, key = getattr(cost, field), (cost.device_type, field)
            if time and stated.setdefault(key, time) != time:
                raise ValueError(
                    f"{owner}: {field} = {time} and {stated[key]} on {cost.device_type!r}; it depends on neither width "
                    "nor samples: state one number per device type"
                )

    def optimizer_ns(self, device_type: str) -> int:
        """The optimizer's step on the layer's weights on one device of a type; 0 where it is not stated."""
        return self.once_ns("optimizer", device_type)

    def once_ns(self, what: str, device_type: str) -> int:
        """What takes a device of a type so long once per iteration, by the name of its field in a cost (`what_ns`)."""
        times = (getattr(cost, f"{what}_ns") for cost in self.costs if cost.device_type == device_type)
        return max(times, default=0)

    @property
    def is_trainable(self) -> bool:
        """Whether the layer has weights to train, hence a W and a gradient to synchronise."""
        return self.parameter_bytes > 0 and not self.frozen

    @property
    def synchronised_bytes(self) -> int:
        """Bytes that replicas of the layer synchronise once per iteration."""
        if not self.is_trainable:
            return 0
        return self.parameter_bytes if self.gradient_bytes is None else self.gradient_bytes

    def synchronised_bytes_at(self, width: int) -> int | None:
        """The same on each device of a group of `width`; None: not stated, hence the layer's in equal parts."""
        if width == 1 or not self.is_trainable:
            return self.synchronised_bytes
        entry = next((entry for entry in self.wider if entry.width == width), None)
        if entry is None or entry.gradient_bytes is not None:
            return None if entry is None else entry.gradient_bytes
        return entry.parameter_bytes if self.gradient_bytes is None else None

    @property
    def gathered_bytes(self) -> int:
        """Bytes of weights that replicas tell each other after the optimizer's step, where they shard its state."""
        return self.parameter_bytes if self.is_trainable else 0

    def gathered_bytes_at(self, width: int) -> int | None:
        """The same on each device of a group of `width`; None: not stated, hence the layer's in equal parts."""
        if width == 1 or not self.is_trainable:
            return self.gathered_bytes
        entry = next((entry for entry in self.wider if entry.width == width), None)
        return None if entry is None else entry.parameter_bytes

    @property
    def shardable_weight_bytes(self) -> int:
        """Bytes of trained weights, as far as the optimizer's state is distinguished from them; on single devices."""
        return self.gathered_bytes if self.optimizer_bytes is not None else 0

    def shardable_bytes_at(self, width: int) -> int:
        """Bytes of the optimizer's state on each device of a group of `width`, as far as they are distinguished."""
        entry = self.bytes_at(width)
        return 0 if entry is None or not self.is_trainable else entry.optimizer_bytes or 0

    def bytes_at(self, width: int) -> "Layer | WidthBytes | None":
        """The byte fields per device at `width`, or None where they were not measured."""
        if width == 1:
            return self
        return next((entry for entry in self.wider if entry.width == width), None)

    def without_host_times(self) -> "Layer":
        """The layer for a host that takes no time to ask."""
        if not any(cost.host for cost in self.costs):
            return self
        return replace(self, costs=tuple(replace(cost, host=()) for cost in self.costs))

    def as_one_device(self, cost: LayerCost, *, device_type: str | None = None) -> "Layer":
        """The layer with one of its costs alone, as if the group of devices that it is for were one."""
        held = self.bytes_at(cost.width) or self
        alone = replace(
            cost,
            device_type=device_type or cost.device_type,
            width=1,
            microbatch_size=None,
            backward_ns=None,
            recompute_kinds=(),
            host=tuple(each for each in cost.host if each.action in (*"FIWB", FULL)),
        )
        sizes = {each.name: getattr(held, each.name) for each in fields(WidthBytes) if each.name != "width"}
        sizes |= {"recompute_kinds": (), "parameter_bytes": held.parameter_bytes or 0}
        return replace(self, costs=(alone,), wider=(), **sizes)

    def unsynchronised(self) -> "Layer":
        """The layer with nothing that replicas synchronise."""
        if not self.is_trainable:
            return self
        stated = (each if each.gradient_bytes is None else replace(each, gradient_bytes=0) for each in self.wider)
        return replace(self, gradient_bytes=0, wider=tuple(stated))


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge(StrictRecord):
    """A tensor that flows from one layer to another, once per microbatch."""

    producer: Name
    """Name of the layer whose output it is."""
    consumer: Name
    """Name of the layer that reads it."""
    bytes: Bytes
    """Size of the tensor per microbatch."""
    gradient_bytes: Bytes | None = None
    """Size of the gradient that flows back; None: the same as `bytes`; 0: no gradient flows (a frozen prefix)."""

    def __post_init__(self) -> None:
        owner = f"edge {str(self.producer)[:80]!r} -> {str(self.consumer)[:80]!r}"
        require_fields(owner, self)
        if self.producer == self.consumer:
            raise ValueError(f"{owner}: a layer cannot feed itself; remove the edge")

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient flows back over the edge."""
        return self.gradient_bytes != 0

    @property
    def backward_bytes(self) -> int:
        """Bytes of the gradient that flows back."""
        return self.bytes if self.gradient_bytes is None else self.gradient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOverhead(StrictRecord):
    """What an action costs beyond its layers on one device type: the executor's own work in it and before it."""

    device_type: Name
    """The device type it was measured on."""
    forward_ns: Nanoseconds = 0
    """Added to every F."""
    input_grad_ns: Nanoseconds = 0
    """Added to every I."""
    weight_grad_ns: Nanoseconds = 0
    """Added to every W."""
    backward_ns: Nanoseconds = 0
    """Added to every B, at most what I and W have together."""
    exchange_ns: Annotated[int, Whole("nanoseconds", most=MAX_EXCHANGE_NS)] = 0
    """One exchange of a layer's replicas, waiting for each other included, wherever they are."""
    stages_forward_ns: Nanoseconds = 0
    """Added to every F as well where a plan has several stages, which hand tensors on."""
    stages_input_grad_ns: Nanoseconds = 0
    """Likewise to every I."""
    stages_weight_grad_ns: Nanoseconds = 0
    """Likewise to every W."""
    stages_backward_ns: Nanoseconds = 0
    """Likewise to every B, at most what I and W have together."""
    sharded_forward_ns: Nanoseconds = 0
    """Added to every F of a fully sharded stage: what torch does around its messages."""
    sharded_backward_ns: Nanoseconds = 0
    """Likewise to every I or B."""

    def __post_init__(self) -> None:
        owner = f"action overhead on {str(self.device_type)[:80]!r}"
        require_fields(owner, self)
        for start in ("", "stages_"):
            whole, *parts = (getattr(self, f"{start}{name}_ns") for name in ("backward", "input_grad", "weight_grad"))
            if whole > sum(parts):
                raise ValueError(
                    f"{owner}: {start}backward_ns = {whole} exceeds {start}input_grad_ns + {start}weight_grad_ns = "
                    f"{sum(parts)}; one action costs no more than two: measure it again"
                )

    def of(self, kind: str, *, has_stages: bool, is_sharded: bool = False) -> int:
        """What is added to an action of kind F, I, W or B; `has_stages`: where a plan has several; `is_sharded`: of a
        fully sharded stage.
        """
        name = {"F": "forward_ns", "I": "input_grad_ns", "W": "weight_grad_ns", "B": "backward_ns"}[kind]
        more: int = getattr(self, f"stages_{name}") if has_stages else 0
        if is_sharded and kind != "W":
            more += self.sharded_forward_ns if kind == "F" else self.sharded_backward_ns
        always: int = getattr(self, name)
        return always + more


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(StrictRecord):
    """What a run of a plan took, or an operation by a table: where figures of a profile come from.

    No figure is read from here.
    """

    what: Name
    """`duration` and `overhead` of actions, `transfer`, `synchronisation` or `optimizer`."""
    subject: Name
    """Stage and kind of action (`2F`), the way of a transfer, or a device."""
    count: Annotated[int, Whole("samples", least=1)]
    """Number of samples."""
    median_ns: _Measured
    """Their median; may be negative where clocks of hosts differ, like the others."""
    low_ns: _Measured
    """Their lower quartile."""
    high_ns: _Measured
    """Their upper quartile."""
    source: Name
    """The run, or the table."""
    error_permille: Annotated[int, Whole("thousandths", most=10**6)] | None = None
    """Of a time between rows of a table: 95 % of the table's own rows, each left out in turn, are within so many
    thousandths of what is read between the others; `low_ns` and `high_ns` are the time less and plus so much. None:
    measured, or not known; where `what` is `interpolated` in older documents, `low_ns` and `high_ns` are then the least
    and the most of the rows around it, and no error."""

    def __post_init__(self) -> None:
        owner = f"measurement of {str(self.what)[:80]!r} of {str(self.subject)[:80]!r}"
        require_fields(owner, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun(StrictRecord):
    """A short run of the executor beside the profile: how far its figures are from what happens."""

    predicted_ns: Annotated[int, Whole("nanoseconds", least=1)]
    """What an iteration takes by the profile's figures."""
    measured_ns: Annotated[int, Whole("nanoseconds", least=1)]
    """Median iteration of the run."""

    def __post_init__(self) -> None:
        require_fields("probe", self)

    @property
    def error(self) -> float:
        """Of the prediction: above 0 it was too slow."""
        return self.predicted_ns / self.measured_ns - 1


@dataclass(frozen=True, kw_only=True)
class ModelProfile(StrictRecord):
    """A model as the planner sees it: a directed acyclic graph of measured layers."""

    name: Name
    """Shown in tables and pictures."""
    layers: Annotated[tuple[Layer, ...], NotEmpty("a profile needs at least one layer")]
    """The layers, in any order; at least one."""
    edges: tuple[Edge, ...]
    """The tensors between them; together acyclic."""
    microbatch_size: Samples | None = None
    """Samples in one microbatch, which replicas take whole; None: unknown, and assumed to be cut evenly by any number
    of them, which no executor can rely on."""
    scaling: Scaling | None = None
    """What costs are outside the measured sizes; None (documents of version 1): `linear` where no layer was measured at
    several sizes on one type and width, otherwise `measured`."""
    optimizer_ns: Nanoseconds = 0
    """Time on every device after the last gradient is synchronised, whatever the device holds; what depends on the
    layers stands with their costs, and is added."""
    stages_optimizer_ns: Nanoseconds = 0
    """Added to it where a plan has several stages, whose processes agree on every update."""
    provenance: str = ""
    """Where the figures come from and what was assumed, in a sentence or more."""
    degrees: tuple[Degrees, ...] = ()
    """What the devices of a group share, one entry per width; a width without one: the tensor-parallel degree."""
    assumptions: Assumptions | None = None
    """How the model was run when times and bytes were taken; exports state it to other programs. None: not stated."""
    measurements: tuple[Measurement, ...] = ()
    """What the runs took that the profile was calibrated with."""
    probe: ProbeRun | None = None
    """The profile held against a run of its own; None: there was none, or the figures are of other runs since."""
    action_overhead_ns: tuple[ActionOverhead, ...] = ()
    """What every action costs beyond its layers, one entry per device type; a type without one: not measured, 0."""
    conditions: Literal["busy", "alone"] | None = None
    """Whether layers of devices that share a host were timed while the others were busy; None: not stated."""
    bucket_bytes: Bytes = 0
    """Most bytes of gradients that a replica holds a second time while its stage reduces them; 0: not modelled."""
    gradient_as_bucket_view: bool = False
    """Whether gradients lie in what is reduced from the first microbatch on (DistributedDataParallel's switch of that
    name, Megatron's buffers): then an all-reduce holds nothing twice; a reduce-scatter has its bucket all the same."""
    reduction_bytes: Bytes = 0
    """What a process whose stages have replicas holds beyond its reserve, its bucket and all else: what the allocator
    keeps around gradients that stay where they are reduced; 0: nothing, or not measured."""
    held_once: tuple[HeldOnce, ...] = ()
    """What layers count each and a stage of single devices holds once."""

    def __post_init__(self) -> None:
        owner = f"profile {str(self.name)[:MAX_NAME_LENGTH]!r}"
        require_fields(owner, self)
        if self.microbatch_size is None:
            self._require_one_size(owner)
        require_distinct(f"{owner}: layer", (layer.name for layer in self.layers))
        self._require_degrees(owner)
        require_distinct(f"{owner}: action overhead on", (each.device_type for each in self.action_overhead_ns))
        if self.conditions not in (None, "busy", "alone"):
            shown = str(self.conditions)[:60]
            raise ValueError(f"{owner}: conditions = {shown!r}; write 'busy' or 'alone', or leave it out")
        self._require_clocks(owner)
        require_distinct(f"{owner}: edge", (f"{edge.producer!r} -> {edge.consumer!r}" for edge in self.edges))
        known = {layer.name for layer in self.layers}
        for position, edge in enumerate(self.edges):
            for end in (edge.producer, edge.consumer):
                if end not in known:
                    raise ValueError(
                        f"{owner}: edges[{position}] names the unknown layer {end!r}; add the layer or correct the name"
                    )
        require_held_once(owner, self.held_once, layers=[self.by_name[name] for name in self.topological_order])

    def _require_clocks(self, owner: str) -> None:
        """On a device type all layers state the host's times, or none does."""
        stated: dict[str, tuple[bool, str]] = {}
        for layer in self.layers:
            for cost in layer.costs:
                has_host, other = stated.setdefault(cost.device_type, (bool(cost.host), layer.name))
                if has_host != bool(cost.host):
                    with_host, without = (other, layer.name) if has_host else (layer.name, other)
                    raise ValueError(
                        f"{owner}: on {cost.device_type!r} layer {with_host!r} states host times and {without!r} has a "
                        "cost without; state them in every cost of the device type, or in none"
                    )

    @cached_property
    def has_host_times(self) -> bool:
        """Whether the host's times are distinguished on any device type."""
        return any(cost.host for layer in self.layers for cost in layer.costs)

    def without_host_times(self) -> "ModelProfile":
        """The profile of a host that takes no time to ask."""
        return replace(self, layers=tuple(layer.without_host_times() for layer in self.layers))

    def overhead_ns(self, device_type: str, kind: str, *, has_stages: bool, is_sharded: bool = False) -> int:
        """What an action of a kind costs beyond its layers on a device type; 0 where it was not measured.

        `has_stages`: in a plan of several stages; what it costs in a plan of one is the least that it costs in any.
        """
        known = (each for each in self.action_overhead_ns if each.device_type == device_type)
        return next((each.of(kind, has_stages=has_stages, is_sharded=is_sharded) for each in known), 0)

    def exchange_ns(self, device_type: str) -> int:
        """What one exchange between the replicas of a stage takes on a device type; 0 where it was not measured."""
        return next((each.exchange_ns for each in self.action_overhead_ns if each.device_type == device_type), 0)

    def _require_one_size(self, owner: str) -> None:
        """Sizes of single costs say nothing without the size of a microbatch."""
        for layer in self.layers:
            for cost in layer.costs:
                if cost.microbatch_size is not None:
                    raise ValueError(
                        f"{owner}: microbatch_size = null, but layer {layer.name!r} has a cost at microbatch_size = "
                        f"{cost.microbatch_size}; state the samples of a microbatch"
                    )

    def _require_degrees(self, owner: str) -> None:
        """One meaning of a width, which some layer has."""
        require_distinct(f"{owner}: degrees of width", (str(each.width) for each in self.degrees))
        known = {cost.width for layer in self.layers for cost in layer.costs}
        for each in self.degrees:
            if each.width not in known:
                raise ValueError(
                    f"{owner}: degrees {each} are those of width {each.width}, at which no layer has a cost; give "
                    "costs there, or leave them out"
                )
        shared = self.assumptions is not None and (self.assumptions.context_parallel or 1) > 1
        if shared and any(each.context > 1 for each in self.degrees):
            raise ValueError(
                f"{owner}: context is among its degrees, and assumptions.context_parallel > 1 too; state it once"
            )

    def degrees_at(self, width: int) -> Degrees:
        """What the devices of a group of so many share."""
        return next((each for each in self.degrees if each.width == width), Degrees(tensor=width))

    @cached_property
    def by_name(self) -> dict[str, Layer]:
        """The layers by their names."""
        return {layer.name: layer for layer in self.layers}

    def trains(self, names: Iterable[str]) -> bool:
        """Whether any of these layers has weights to train: then a stage of them has a W."""
        return any(self.by_name[name].is_trainable for name in names)

    @cached_property
    def scales_linearly(self) -> bool:
        """Whether costs outside the measured sizes are in proportion to those of the nearest size."""
        if self.scaling is not None:
            return self.scaling == "linear"
        kinds = [(layer.name, cost.device_type, cost.width) for layer in self.layers for cost in layer.costs]
        return len(set(kinds)) == len(kinds)

    @cached_property
    def has_layer_steps(self) -> bool:
        """Whether the optimizer's step is stated for any layer."""
        return any(cost.optimizer_ns for layer in self.layers for cost in layer.costs)

    @cached_property
    def states_recomputation(self) -> bool:
        """Whether some layer keeps less where it recomputes, and each that does says what it takes, at all widths."""
        saving = [
            layer
            for layer in self.layers
            if layer.checkpoint_bytes < layer.stash_bytes
            or any(each.checkpoint_bytes < each.stash_bytes for each in layer.wider)
        ]
        costs = [cost for layer in saving for cost in layer.costs]
        return bool(costs) and all(cost.recompute_ns > 0 or cost.forward_ns == 0 for cost in costs)

    @cached_property
    def has_exchanges(self) -> bool:
        """Whether replicas of any stage wait for each other within actions."""
        counts = any(layer.forward_exchanges or layer.backward_exchanges for layer in self.layers)
        return counts and any(each.exchange_ns for each in self.action_overhead_ns)

    @cached_property
    def has_one_size(self) -> bool:
        """Whether all costs were measured at the size of a microbatch."""
        sizes = {cost.microbatch_size for layer in self.layers for cost in layer.costs}
        return sizes <= {None, self.microbatch_size}

    def is_whole(self, share: Fraction) -> bool:
        """Whether such a part of a microbatch is a whole number of samples, as far as that is known."""
        return self.microbatch_size is None or (self.microbatch_size * share).denominator == 1

    @cached_property
    def topological_order(self) -> tuple[str, ...]:
        """Layer names such that every edge points forward, as close to the listed order as the edges allow.

        Raises ValueError naming the layers of a cycle if there is one.
        """
        position = {layer.name: index for index, layer in enumerate(self.layers)}
        consumers: dict[str, list[str]] = {name: [] for name in position}
        waiting = dict.fromkeys(position, 0)
        for edge in self.edges:
            consumers[edge.producer].append(edge.consumer)
            waiting[edge.consumer] += 1
        ready = [position[name] for name, count in waiting.items() if count == 0]
        heapify(ready)
        order: list[str] = []
        while ready:
            name = self.layers[heappop(ready)].name
            order.append(name)
            for consumer in consumers[name]:
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
                    heappush(ready, position[consumer])
        if len(order) < len(position):
            raise ValueError(
                f"profile {self.name!r}: the edges form a cycle: {self._cycle(set(order))}; remove one of them"
            )
        return tuple(order)

    def _cycle(self, done: set[str]) -> str:
        """One cycle among the layers not in `done`, as text."""
        producer_of = {e.consumer: e.producer for e in self.edges if e.producer not in done and e.consumer not in done}
        walk = [next(iter(producer_of))]
        while walk[-1] not in walk[:-1]:
            walk.append(producer_of[walk[-1]])
        cycle = walk[walk.index(walk[-1]) :][::-1]
        shown = cycle if len(cycle) <= 8 else [*cycle[:4], "...", *cycle[-3:]]
        return " -> ".join(shown)

    def adding_up(self) -> "ModelProfile":
        """The profile in which layers hold no more stash than any stage does for them, each its own; states stay."""
        layers = (_without([each for each in self.held_once if each.second == own.name], own) for own in self.layers)
        return replace(self, layers=tuple(layers), held_once=())

    @cached_property
    def is_chain(self) -> bool:
        """Whether every layer feeds exactly the next one in topological order and no other."""
        order = self.topological_order
        return {(e.producer, e.consumer) for e in self.edges} == set(itertools.pairwise(order))


def _without(once: Iterable[HeldOnce], layer: Layer) -> Layer:
    """A layer without what layers before it hold as well, on one device."""
    pairs = [(each.stash_bytes, each.weight_stash_bytes) for each in once]
    left = layer.stash_bytes - sum(stash for stash, _ in pairs)
    return replace(
        layer,
        stash_bytes=left,
        weight_stash_bytes=min(left, layer.weight_stash_bytes - sum(waiting for _, waiting in pairs)),
        checkpoint_bytes=min(left, layer.checkpoint_bytes),
        recompute_kinds=checkpoints_scaled(layer.recompute_kinds, lambda size: min(left, size)),
    )


def _require_parts(owner: str, sizes: Layer | WidthBytes) -> None:
    """What belongs to the stash, or to the workspace, is no larger."""
    require_distinct(f"{owner}: recomputation", (entry.kind for entry in sizes.recompute_kinds))
    parts = [("weight_stash_bytes", sizes.weight_stash_bytes), ("checkpoint_bytes", sizes.checkpoint_bytes)]
    parts += [(f"checkpoint_bytes of {entry.kind!r}", entry.checkpoint_bytes) for entry in sizes.recompute_kinds]
    wholes = [(*part, "stash_bytes", sizes.stash_bytes) for part in parts]
    wholes += [("fixed_workspace_bytes", sizes.fixed_workspace_bytes, "workspace_bytes", sizes.workspace_bytes)]
    for field, size, whole, most in wholes:
        if size > most:
            raise ValueError(
                f"{owner}: {field} = {size} exceeds {whole} = {most}; it is a part of it: lower it or raise {whole}"
            )


def checkpoints_scaled(entries: Iterable[RecomputeBytes], change: Callable[[int], int]) -> tuple[RecomputeBytes, ...]:
    """What other kinds of recomputation leave, each changed."""
    return tuple(replace(entry, checkpoint_bytes=change(entry.checkpoint_bytes)) for entry in entries)


def _require_parts_of_state(owner: str, sizes: Layer | WidthBytes) -> None:
    """Weights, gradients and optimizer state lie beside each other, wherever the latter two are stated."""
    if sizes.gradient_bytes is None and sizes.optimizer_bytes is None:
        return
    parameters = sizes.parameter_bytes or 0
    gradients = parameters if sizes.gradient_bytes is None else sizes.gradient_bytes
    parts = parameters + gradients + (sizes.optimizer_bytes or 0)
    if getattr(sizes, "frozen", False):
        raise ValueError(
            f"{owner}: gradient_bytes and optimizer_bytes apply to trained layers only; leave them out, or set frozen "
            "= false"
        )
    if parts > sizes.state_bytes:
        raise ValueError(
            f"{owner}: parameter_bytes + gradient_bytes + optimizer_bytes = {parts} exceeds state_bytes = "
            f"{sizes.state_bytes}; state_bytes is at least their sum: raise it, or correct a part"
        )
