"""The question: a model profile, a cluster, a number of microbatches, and what may be decided."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from math import gcd
from typing import Annotated, Any

from planner import decisions
from planner.option_values import Objective, OrderChoice, RankingTime, ShardChoice, Synchronisation, ranked_by
from planner.plan import ProblemReference, Shard, Stage
from profiles.cluster import Cluster
from profiles.documents.canonical_json import content_sha256, to_plain
from profiles.documents.strict_record import StrictRecord
from profiles.field_rules import (
    MAX_BYTES,
    MAX_SAMPLES,
    MAX_WIDTH,
    Nanoseconds,
    Whole,
    require_distinct,
    require_fields,
    require_integer,
)
from profiles.microbatch_sizes import costs_near, profile_at, why_no_cost
from profiles.model_profile import Layer, LayerCost, ModelProfile

MAX_ACTIONS = 4_000_000
"""Largest schedule that is planned: microbatches x devices x 3 actions (or x stages, if a partition is given)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedLayer(StrictRecord):
    """A layer that must run on a given device (every replica of its stage includes the device's group)."""

    layer: str
    """A layer of the profile."""
    device: str
    """A device of the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(StrictRecord):
    """What the executor can do, what the planner may decide, and what is decided already."""

    split_backward: bool = True
    """The executor can run I and W apart; otherwise only B."""
    max_stages_per_device: Annotated[int, Whole("stages", least=1, most=1024)] = 2
    """Largest number of stages (chunks) a device may hold; 1: one stage per device."""
    max_replicas: Annotated[int, Whole("replicas", least=1, most=2**20)] | None = None
    """Largest number of replicas of a stage; None: as many as there are devices; 1: no replication."""
    uneven_replication: bool = True
    """Stages may have different numbers of replicas."""
    skip_edges: bool = True
    """Tensors may flow between stages that are not neighbours."""
    max_width: Annotated[int, Whole("devices", least=1, most=MAX_WIDTH)] = 1
    """Largest number of devices that may share the layers of a stage (needs measured costs at that width)."""
    recompute: bool = False
    """Stages may recompute their activations (needs `checkpoint_bytes` and `recompute_ns` in the profile)."""
    recompute_layers: bool = False
    """Which layers of a stage recompute is decided, and by which kind that they state; needs `recompute`."""
    recompute_in_turn: bool = False
    """While B of a stage runs, the layers that recompute do so one after the other, and the stash of one of them is
    there at a time; needs `recompute`."""
    recompute_microbatches: bool = False
    """Which microbatches of a stage recompute is decided, and the others keep everything; needs `recompute`."""
    offload: bool = False
    """Which microbatches of a stage have their stash in host memory between F and I or B is decided; needs a
    `host_link` of devices."""
    shard_optimizer: ShardChoice = "never"
    """Whether the replicas of a stage shard the optimizer's state: `allow` and `together` (all replicated stages or
    none) leave it to the planner."""
    max_active_stages: Annotated[int, Whole("stages", least=1, most=1024)] | None = None
    """Replicas that shard the optimizer's state may shard the weights, too, and gather them for runs of actions; of so
    many stages of a device at a time at most. None: weights stay whole."""
    fully_shard: bool = False
    """The replicas of a plan's only stage may shard weights and gradients, too, and gather each layer in F and B: fully
    sharded data parallelism (FSDP2)."""
    idle_devices: bool = True
    """Devices may stay without a stage."""
    receive_buffers: Annotated[int, Whole("buffers", most=2**20)] = 2
    """Receive buffers per edge that enters a stage from another device; 0 ignores them."""
    order: OrderChoice = "any"
    """Which stages and orders there are: any, or those of programs that run stages in a loop (1F1B, interleaved or
    not)."""
    keep_workspace: bool = False
    """I keeps its workspace until the W of the same stage and microbatch has ended, which runs in it."""
    split_placement: bool = False
    """Plans may place W, or half of every I, of a stage on other devices; only the bound on the work covers that."""
    unequal_shares: bool = False
    """Replicas of a stage may take unequal shares of whole samples; only bounds that hold then are used."""
    synchronisation: Synchronisation = "after"
    """When and where the gradients of a replicated stage are synchronised."""
    pinned: tuple[PinnedLayer, ...] = ()
    """Layers whose device is decided."""
    partition: tuple[tuple[str, ...], ...] | None = None
    """The stages, if they are decided: layer names per stage, in stage order."""
    placement: tuple[tuple[tuple[str, ...], ...], ...] | None = None
    """The device groups of every stage of `partition`, if they are decided."""
    objective: Objective = "makespan"
    """The figure that is minimised."""
    deadline_ns: Nanoseconds | None = None
    """With objective `cost`: the makespan is at most this; None: no limit."""

    @property
    def ranked_by(self) -> RankingTime:
        """The time that ranks plans on the same devices."""
        return ranked_by(self.objective)

    @property
    def decides_whole_stages(self) -> bool:
        """Whether a stage recomputes all layers of every microbatch, or nothing."""
        return not self.recompute_layers and not self.recompute_microbatches

    def __post_init__(self) -> None:
        require_fields("options", self)
        require_distinct("options: pinned layer", (pin.layer for pin in self.pinned))
        decisions.refuse(self)
        self._require_cost()
        if self.placement is not None:
            if self.partition is None:
                raise ValueError("options: placement is given without a partition; give options.partition as well")
            if len(self.placement) != len(self.partition):
                raise ValueError(
                    f"options: placement has {len(self.placement)} entries for {len(self.partition)} stages; "
                    "give one list of device groups per stage"
                )

    @property
    def rules(self) -> dict[str, int]:
        """The options that are on, and those that are numbers, by name: models of integers know them by these."""
        stated = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: int(value) for name, value in stated.items() if isinstance(value, int) and value is not False}

    @property
    def cuts_unevenly(self) -> bool:
        """Whether a device may take another part of a microbatch than an equal one."""
        return self.split_placement or self.unequal_shares

    def shards(self, replicas: int) -> tuple[Shard, ...]:
        """What stages with so many replicas may do with the optimizer's state; whole state first."""
        if replicas == 1 or self.shard_optimizer == "never":
            return ("none",)
        return ("optimizer",) if self.shard_optimizer == "always" else ("none", "optimizer")

    @property
    def has_few_bounds(self) -> bool:
        """Whether plans may be made of what most bounds and the complete searches know nothing of."""
        return decisions.holding_bounds(self) is not None

    @property
    def is_enumerated(self) -> bool:
        """Whether the exact search sees all stages that plans may have."""
        return all(each.decision.is_enumerated for each in decisions.asked(self))

    def _require_cost(self) -> None:
        """A deadline bounds what is not minimised."""
        if self.deadline_ns is not None and self.objective != "cost":
            raise ValueError(
                f"options: deadline_ns = {self.deadline_ns} with objective = {self.objective}; "
                "set objective to cost, or leave the deadline out"
            )


MOST_STAGES, MOST_MICROBATCHES = 2**11 - 1, 2**21 - 2
"""What the keys of the evaluator's events have room for (`solver_models.simulation.event_heap`)."""

MOST_NS = 2**60
"""Times add up to less, so that 64 bits hold them: 36 years."""

MOST_BYTES = 2**60
"""Bytes add up to less, so that 64 bits hold them."""


def _longest_ns(cost: LayerCost) -> int:
    """All that a layer can take per microbatch, with all that its host takes to ask for it."""
    extra = max([cost.recompute_ns, *(kind.recompute_ns for kind in cost.recompute_kinds)])
    asking = sum(each.host_ns + each.last_ns for each in cost.host)
    return cost.forward_ns + cost.input_grad_ns + cost.weight_grad_ns + extra + asking


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatch:
    """The question that a problem is one candidate of: the same batch, in microbatches of any size that was measured.

    `planner.batch_problem` makes the candidates.
    """

    profile: ModelProfile
    """The measurements, at the size of microbatches that they state."""
    global_batch_size: int
    """Samples per synchronous iteration."""
    microbatch_sizes: tuple[int, ...] | None = None
    """The sizes that may be chosen, ascending; None: every measured one that divides the batch."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Everything that a plan is an answer to. References between its parts are checked here."""

    profile: ModelProfile
    """Layers with costs and bytes, and edges."""
    cluster: Cluster
    """Devices with memory, and links."""
    num_microbatches: int
    """Microbatches per synchronous iteration."""
    options: Options = field(default_factory=Options)
    """Abilities of the executor, open decisions and the objective."""
    batch: GlobalBatch | None = None
    """Where the size of a microbatch was decided, too: the question whose answer this problem's plan is."""
    microbatches: tuple[int, ...] | None = None
    """The size of every microbatch, where they may differ; None: all have that of the profile."""

    def __post_init__(self) -> None:
        require_integer("problem: num_microbatches", self.num_microbatches, least=1, most=MOST_MICROBATCHES)
        self._require_batch()
        if self.microbatches is not None:
            self._require_microbatches(self.microbatches)
        actions = 3 * self.num_microbatches * min(len(self.cluster.devices), len(self.profile.layers))
        if actions > MAX_ACTIONS:
            raise ValueError(
                f"problem: num_microbatches = {self.num_microbatches} needs {actions:,} actions, above the limit of "
                f"{MAX_ACTIONS:,}; use fewer microbatches, or merge layers"
            )
        self._require_costs()
        self._require_clocks()
        decisions.require(self.options, self.cluster)
        self._require_known_choices()
        self._require_size()

    def _require_batch(self) -> None:
        """The microbatches are the batch, and the layers those that were measured."""
        if self.batch is None:
            return
        size, whole = self.profile.microbatch_size, self.batch.global_batch_size
        if size is None or size * self.num_microbatches != whole:
            raise ValueError(
                f"problem: {self.num_microbatches} microbatches of {size} samples are not global_batch_size = {whole}; "
                "change both, or leave batch out"
            )

    def _require_microbatches(self, sizes: tuple[int, ...]) -> None:
        """Every microbatch has a size at which all layers have a cost, and nothing else says how large it is."""
        if self.profile.microbatch_size is None:
            raise ValueError(
                f"problem: microbatches lists sizes, but microbatch_size of {self.profile.name!r} is null, so the "
                "measured size is unknown; state it, or give num_microbatches"
            )
        if len(sizes) != self.num_microbatches or self.batch is not None:
            raise ValueError(
                f"problem: microbatches lists {len(sizes)} sizes with num_microbatches = {self.num_microbatches}"
                f"{'' if self.batch is None else ' and a global batch'}; give a size for every microbatch, and no batch"
            )
        for size in sizes:
            require_integer("problem: microbatches", size, least=1, most=MAX_SAMPLES)
        types = self.cluster.device_types
        for size in (min(sizes), max(sizes)):
            if reason := why_no_cost(self.profile, size, device_types=types):
                raise ValueError(
                    f"problem: microbatches names size {size}, but {reason}; measure it (pipeplan profile -b), or "
                    'state "scaling": "linear"'
                )
        profile_at(self.profile, max(sizes))  # refuses bytes beyond every limit
        for each in decisions.asked(self.options):
            if each.decision.one_size_only:
                raise ValueError(
                    f"problem: microbatches lists sizes with {each.stated}, which is only for microbatches of one "
                    "size; leave the option out, or give num_microbatches"
                )

    def require_alike(self, what: str) -> None:
        """Raise ValueError if the question lists microbatches, for `what` takes all for equal."""
        if self.microbatches is not None:
            raise ValueError(
                f"problem: microbatches lists {len(self.microbatches)} sizes, but {what} assumes equal ones; plan with "
                "num_microbatches instead (-m N)"
            )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the microbatches that are listed, ascending, each once."""
        return tuple(sorted(set(self.microbatches or ())))

    def at_size(self, size: int, *, count: int | None = None) -> "Problem":
        """The question with microbatches of one size, as many as are listed or `count`; wherever stages are placed.

        Its costs are those of a microbatch of that size, and of parts into which replicas may cut all that are listed.
        """
        unit = gcd(*(self.microbatches or (size,)))
        parts = [Fraction(size, count) for count in range(1, self.replica_limit + 1) if unit % count == 0]
        return replace(
            self,
            profile=profile_at(costs_near(self.profile, parts), size),
            num_microbatches=count or self.num_microbatches,
            options=replace(self.options, placement=None),
            microbatches=None,
        )

    def _require_size(self) -> None:
        """What the evaluator counts with 64 bits, and keeps in the keys of its events, has room there."""
        if self.options.partition is not None and len(self.options.partition) > MOST_STAGES:
            raise ValueError(
                f"options: partition has {len(self.options.partition)} stages, at most {MOST_STAGES} can be played; "
                "give stages more layers"
            )
        if self.longest_work_ns >= MOST_NS:
            raise ValueError(
                f"problem: num_microbatches = {self.num_microbatches} of up to "
                f"{self.longest_work_ns // self.num_microbatches:,} ns each add up to more than {MOST_NS:,} ns; use "
                "fewer microbatches, or check the unit of the profile's times"
            )

        self._require_moderate_bytes()

    def _require_moderate_bytes(self) -> None:
        """No message takes longer on the slowest link, and no device can be asked for more, than 64 bits hold."""
        edges, layers = self.profile.edges, self.profile.layers
        most = [(max((edge.bytes for edge in edges), default=0), "an edge")]
        most += [(max(max(each.state_bytes, each.stash_bytes) for each in layers), "a layer's state or stash")]
        speeds = [link.bandwidth_bytes_per_s for link in self.cluster.links]
        slowest = min([*speeds, *(link.bandwidth_bytes_per_s for link in self.cluster.host_links)], default=10**9)
        num_bytes, what = max(most)
        if 4 * num_bytes * 10**9 // slowest >= MOST_NS:
            raise ValueError(
                f"problem: {num_bytes:,} bytes ({what}) take decades on the slowest link with bandwidth_bytes_per_s = "
                f"{slowest:,}; check the units of both"
            )
        once = self.shared_state_bytes
        hosts = {host.name: host.memory_bytes for host in self.cluster.hosts if self.options.offload}
        room = max(each.memory_bytes + hosts.get(each.host_link and each.host, 0) for each in self.cluster.devices)
        if once + room > MAX_BYTES:
            raise ValueError(
                f"problem: a device has {room:,} bytes with its host's memory, and held_once {once:,} of states, "
                f"together above {MAX_BYTES:,}; state less memory, or check the unit"
            )
        received = self.options.receive_buffers * sum(edge.bytes for edge in edges)
        held = sum(each.state_bytes + each.stash_bytes + each.workspace_bytes for each in layers)
        if received + held >= MOST_BYTES:
            raise ValueError(
                f"problem: receive_buffers = {self.options.receive_buffers} for all edges and the layers add up to "
                f"{received + held:,} bytes, not less than {MOST_BYTES:,}; use fewer, or check the unit"
            )

    @property
    def shared_state_bytes(self) -> int:
        """The most that a device holds less of states than its layers add up to."""
        return sum(each.state_bytes for each in self.profile.held_once)

    @cached_property
    def longest_work_ns(self) -> int:
        """All that a plan can compute, one thing after the other, wherever it does."""
        exchange = max((each.exchange_ns for each in self.profile.action_overhead_ns), default=0)
        longest = sum(
            max(_longest_ns(cost) for cost in layer.costs)
            + exchange * (layer.forward_exchanges + layer.backward_exchanges)
            for layer in self.profile.layers
        )
        steps = sum(max(cost.optimizer_ns for cost in layer.costs) for layer in self.profile.layers)
        return longest * self.num_microbatches + steps

    def _require_costs(self) -> None:
        for layer in self.profile.layers:
            for device_type in self.cluster.device_types:
                if not self.widths_of(layer, device_type):
                    raise ValueError(self._reason_without_cost(layer, device_type))
                self._require_whole_cost(layer, device_type)

    def widths_of(self, layer: Layer, device_type: str) -> tuple[int, ...]:
        """How many devices of a type may share a layer, ascending: widths with a cost and bytes, as options allow."""
        most = min(self.options.max_width, self._devices_of_type[device_type])
        measured = {cost.width for cost in layer.costs if cost.device_type == device_type and cost.width <= most}
        return tuple(sorted(width for width in measured if layer.bytes_at(width) is not None))

    @cached_property
    def _devices_of_type(self) -> Counter[str]:
        return Counter(device.type for device in self.cluster.devices)

    @cached_property
    def only_wider(self) -> tuple[str, ...]:
        """The layers that no single device of some type can run, by the order of the profile."""
        return tuple(
            layer.name
            for layer in self.profile.layers
            if any(self.widths_of(layer, device_type)[0] > 1 for device_type in self.cluster.device_types)
        )

    def _reason_without_cost(self, layer: Layer, device_type: str) -> str:
        """What to change where no devices of a type can run a layer."""
        device = next(device for device in self.cluster.devices if device.type == device_type)
        widths = sorted({cost.width for cost in layer.costs if cost.device_type == device_type})
        if widths:
            without = [width for width in widths if layer.bytes_at(width) is None]
            lacks = f"; it has no bytes (`wider`) at {', '.join(map(str, without))}" if without else ""
            return (
                f"layer {layer.name!r} has costs on {device_type!r} at width {', '.join(map(str, widths))} only, but "
                f"max_width = {self.options.max_width} and {self._devices_of_type[device_type]} such devices are "
                f"there{lacks}; raise max_width, measure it at another width, or state what is missing"
            )
        measured = sorted({cost.device_type for cost in layer.costs})
        return (
            f"layer {layer.name!r} has no cost for device type {device_type!r} (device {device.name!r}); measured "
            f"types: {', '.join(measured)}; measure it there or correct the device's type"
        )

    def _require_clocks(self) -> None:
        """Where hosts take time to ask, devices compute while they send, and a stage's actions are its own."""
        if not self.profile.has_host_times:
            return
        what = f"problem: profile {self.profile.name!r} states host times with"
        if not self.cluster.overlap:
            raise ValueError(
                f"{what} overlap = false; an accelerator computes while it sends: set overlap to true, or leave the "
                "host times out"
            )
        for each in decisions.asked(self.options):
            if each.decision.has_one_clock:
                raise ValueError(
                    f"{what} {each.stated}, which has one clock; leave {each.option} out, or leave the host times out"
                )

    def _require_whole_cost(self, layer: Layer, device_type: str) -> None:
        """A whole microbatch lies within the sizes that were measured at the least width: mostly on one device."""
        size, profile, width = self.profile.microbatch_size, self.profile, self.widths_of(layer, device_type)[0]
        sizes = {c.microbatch_size or size for c in layer.costs if (c.device_type, c.width) == (device_type, width)}
        known = sorted(found for found in sizes if found is not None)
        if size is not None and not profile.scales_linearly and not known[0] <= size <= known[-1]:
            raise ValueError(
                f"profile {profile.name!r}: microbatch_size = {size}, but layer {layer.name!r} was measured on "
                f"{device_type!r} at sizes {', '.join(map(str, known))} only; measure it at {size}, or state "
                '"scaling": "linear"'
            )

    def _require_known_choices(self) -> None:
        layers, devices = self.profile.by_name, self.cluster.by_name
        for pin in self.options.pinned:
            if pin.layer not in layers:
                raise ValueError(f"options: pinned names the unknown layer {pin.layer!r}; use a name of the profile")
            if pin.device not in devices:
                raise ValueError(f"options: pinned names the unknown device {pin.device!r}; use a name of the cluster")
        if self.options.partition is not None:
            listed = [name for stage in self.options.partition for name in stage]
            require_distinct("options: layer in partition", listed)
            if set(listed) != set(layers):
                name = min(set(listed) ^ set(layers))
                raise ValueError(
                    f"options: partition and profile differ in layer {name!r}; list every layer exactly once"
                )
        for groups in self.options.placement or ():
            for name in (name for group in groups for name in group):
                if name not in devices:
                    raise ValueError(f"options: placement names the unknown device {name!r}; use a name of the cluster")
        for number, groups in enumerate(self.options.placement or ()):
            if groups and self.microbatches is None and not self.profile.is_whole(Fraction(1, len(groups))):
                raise ValueError(
                    f"options: placement gives stage {number} {len(groups)} replicas, which cannot take equal parts of "
                    f"microbatch_size = {self.profile.microbatch_size} samples; use a number that divides it"
                )

    @property
    def given_stages(self) -> tuple[Stage, ...] | None:
        """The stages that the options state, with their devices; None where either is open."""
        if self.options.partition is None or self.options.placement is None:
            return None
        pairs = zip(self.options.partition, self.options.placement, strict=True)
        return tuple(Stage(layers=layers, replicas=groups) for layers, groups in pairs)

    def is_as_given(self, stages: Sequence[Stage]) -> bool:
        """Whether stages are those of the partition, on the devices of the placement, as far as these are given."""
        partition, placement = self.options.partition, self.options.placement
        has_layers = partition is None or list(map(set, partition)) == [set(stage.layers) for stage in stages]
        return has_layers and (placement is None or list(placement) == [stage.replicas for stage in stages])

    @property
    def may_shard(self) -> bool:
        """Whether replicas of some stage may shard the optimizer's state."""
        return self.options.shard_optimizer != "never" and self.most_replicas > 1

    @property
    def replica_limit(self) -> int:
        """Largest number of replicas that the options and the cluster leave."""
        return min(self.options.max_replicas or len(self.cluster.devices), len(self.cluster.devices))

    @cached_property
    def allowed_replicas(self) -> tuple[int, ...]:
        """The numbers of replicas that a stage may have, ascending: those that leave each of them whole samples.

        All up to the limit where the size of a microbatch is unknown.
        """
        numbers = range(1, self.replica_limit + 1)
        return tuple(count for count in numbers if self.profile.is_whole(Fraction(1, count)))

    @property
    def max_replicas(self) -> int:
        """Largest number of replicas a stage may have that take equal shares."""
        return self.allowed_replicas[-1]

    @property
    def may_lose_time(self) -> bool:
        """Whether a device with several stages may compute beside reductions that take a part of it."""
        is_shared = self.most_replicas > 1 and self.options.max_stages_per_device > 1
        return is_shared and self.cluster.collective_occupancy > 0

    @property
    def times_beside_actions(self) -> list[tuple[bool, str, str]]:
        """What takes time that exact searches do not count, and the remedy: they refuse it, or leave it to others."""
        known = (
            (not self.cluster.overlap, "cluster: overlap = false", "set it to true"),
            (self.may_lose_time, "cluster: collective_occupancy", "leave it out"),
            (self.profile.has_host_times, "profile: host times", "leave them out"),
        )
        return [each for each in known if each[0]]

    @property
    def most_replicas(self) -> int:
        """Largest number of replicas a stage may have: with `unequal_shares` each takes a sample at least."""
        size = self.profile.microbatch_size
        return min(self.replica_limit, size) if self.options.unequal_shares and size is not None else self.max_replicas

    @property
    def stated_profile(self) -> ModelProfile:
        """The profile as its document states it, whatever the size of microbatches was chosen."""
        return self.profile if self.batch is None else self.batch.profile

    def at_its_size(self) -> "Problem":
        """The same question with nothing to decide about the size and number of microbatches."""
        return self if self.batch is None else replace(self, batch=None)

    @cached_property
    def profile_sha256(self) -> str:
        """Content hash of the profile as stated."""
        return content_sha256(self.stated_profile)

    @cached_property
    def cluster_sha256(self) -> str:
        """Content hash of the cluster."""
        return content_sha256(self.cluster)

    @cached_property
    def _stated_options(self) -> dict[str, Any]:
        return dict(to_plain(self.options))  # which all plans for it share

    def reference(self) -> ProblemReference:
        """How a plan names the question it answers."""
        return ProblemReference(
            profile=self.profile.name,
            profile_sha256=self.profile_sha256,
            cluster_sha256=self.cluster_sha256,
            num_microbatches=self.num_microbatches,
            options=self._stated_options,
            microbatch_size=None if self.batch is None else self.profile.microbatch_size,
            global_batch_size=None if self.batch is None else self.batch.global_batch_size,
            microbatch_sizes=None if self.batch is None else self.batch.microbatch_sizes,
            microbatches=self.microbatches,
        )
