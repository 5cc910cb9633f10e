"""What a stage costs on a device group, and what flows between stages: the one place where layer costs are added up.

Durations are rounded up to whole nanoseconds, byte counts to whole bytes (docs/reference/contract.md).
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from planner.actions import KINDS
from planner.layout.gathers import most_gathered
from planner.layout.layer_passes import LayerPass, Resident, most_whole, pass_ns
from planner.layout.split_placement import SplitPart, common, input_grad_ranges, make_parts, part_of, replica_ranges
from planner.layout.two_clocks import ActionClocks, Asking, Matrix, matrix_of, product
from planner.plan import FULL_RECOMPUTATION, DeviceGroup, Plan, Stage
from planner.problem import Problem
from profiles.cluster import Collective
from profiles.held_once import HeldOnce
from profiles.model_profile import Edge, Layer, LayerCost, WidthBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """Device time that one microbatch takes in one layer, summed over the `r` replicas of its stage, in nanoseconds.

    Replicas that each take the cost at `microbatch_size` have `r` times that work; under linear scaling the work does
    not depend on `r`, exchanges between replicas aside. A stage's time on one replica is the sum of its layers' work
    over `r`, rounded up.
    """

    forward_ns: int
    input_grad_ns: int
    weight_grad_ns: int
    backward_ns: int
    recompute_ns: int
    """Of the full recomputation."""
    kinds_ns: tuple[tuple[str, int], ...]
    """Of the other kinds of recomputation, by their names."""
    source: str
    """`measured`, `interpolated` (between two measured sizes) or `scaled` (in proportion, from the nearest size, as
    the profile's `scaling: linear` says)."""
    asking: tuple[tuple[str, Asking], ...] = ()
    """What the hosts of the replicas take together to ask for it, by action; empty where that takes no time."""

    def matrix(self, action: str) -> Matrix:
        """An action, or a kind of recomputation, of the layer on two clocks, summed over the replicas as well."""
        cards = {"F": self.forward_ns, "I": self.input_grad_ns, "W": self.weight_grad_ns, "B": self.backward_ns}
        card = cards[action] if action in cards else self.recomputation_ns(action)
        return matrix_of(dict(self.asking).get(action, Asking(0, 0, 0)), card)

    def first_asked(self, action: str) -> int:
        """What the hosts take together until they have asked for the first kernel of an action or a recomputation."""
        return dict(self.asking).get(action, Asking(0, 0, 0)).first

    def recomputation_ns(self, kind: str) -> int:
        """What a kind of recomputation takes; raises ValueError where the layer does not state it."""
        known = {FULL_RECOMPUTATION: self.recompute_ns, **dict(self.kinds_ns)}
        if kind not in known:
            raise ValueError(
                f"recomputation {kind!r} is none of the layer's kinds ({', '.join(known)}); use one of them"
            )
        return known[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What one replica of a stage costs, per microbatch."""

    forward_ns: int
    input_grad_ns: int
    """Includes the recomputation if the stage recomputes."""
    weight_grad_ns: int
    backward_ns: int
    """Includes the recomputation if the stage recomputes."""
    has_weight_grad: bool
    """Whether the stage has a W action."""
    state_bytes: int
    """Resident on every device of the group."""
    held_bytes: int
    """Taken by F at its start: the stash, or the checkpoint of those layers that recompute."""
    stash_bytes: int
    """Held while I runs; at least `held_bytes`."""
    whole_backward_bytes: int
    """Held while B runs: the stash, or less where layers recompute one after the other; at least `held_bytes`."""
    weight_stash_bytes: int
    """Held from the end of I to the end of W, a workspace that is kept included; 0 without W."""
    workspace_bytes: int
    """Held while F, I or B runs."""
    weight_workspace_bytes: int
    """Held while W runs, unless I has kept it; with split placement the weight stash from elsewhere as well."""
    clocks: tuple[ActionClocks, ...] = ()
    """The host's part of F, I, W and B, whose times above are the card's; empty: both are one."""

    @property
    def least_backward_ns(self) -> int:
        """The backward pass of a microbatch, as B or as I and W, whatever is less."""
        return min(self.backward_ns, self.input_grad_ns + self.weight_grad_ns)

    def least_parts_ns(self, *, can_split: bool) -> tuple[int, int]:
        """The least of the backward pass before its gradient leaves, and the rest."""
        whole, has_weight = self.least_backward_ns, self.has_weight_grad
        returning = min(self.input_grad_ns, whole) if can_split or not has_weight else whole
        return returning, whole - returning if has_weight else 0

    @property
    def durations_ns(self) -> tuple[int, int, int, int]:
        """Times of F, I, W and B."""
        return self.forward_ns, self.input_grad_ns, self.weight_grad_ns, self.backward_ns

    def duration_ns(self, kind: str) -> int:
        """Time of an action of kind F, I, W or B."""
        return self.durations_ns["FIWB".index(kind)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTraffic:
    """What flows between two stages per microbatch, before it is cut over replicas."""

    forward_bytes: int
    """Activations: each producing layer's output once, however many layers of the consuming stage read it."""
    backward_bytes: int
    """Gradients on the way back."""
    has_gradient: bool
    """Whether a gradient flows back at all."""


def layer_work(
    layer: Layer,
    *,
    device_type: str,
    width: int,
    replicas: int | Fraction,
    microbatch_size: int,
    is_linear: bool,
    exchange_ns: int = 0,
) -> LayerWork | None:
    """Work of `layer` when each of `replicas` groups of `width` devices takes 1 / `replicas` of the microbatch.

    The profile's figures at exactly that size are used where they exist, else those interpolated between the two
    neighbouring sizes, else, if costs scale linearly, those of the nearest size in proportion; otherwise None. More
    than one replica exchange statistics, for `exchange_ns` each time.
    """
    work = _without_exchanges(
        layer,
        where=(device_type, width),
        replicas=replicas,
        microbatch_size=microbatch_size,
        is_linear=is_linear,
    )
    if work is None or replicas == 1 or not exchange_ns:
        return work
    counts = layer.forward_exchanges, layer.backward_exchanges
    forward, back = (int(-(-count * exchange_ns * replicas // 1)) for count in counts)
    return replace(
        work,
        forward_ns=work.forward_ns + forward,
        input_grad_ns=work.input_grad_ns + back,
        backward_ns=work.backward_ns + back,
    )


def _without_exchanges(
    layer: Layer, *, where: tuple[str, int], replicas: int | Fraction, microbatch_size: int, is_linear: bool
) -> LayerWork | None:
    points = {
        cost.microbatch_size or microbatch_size: cost for cost in layer.costs if (cost.device_type, cost.width) == where
    }
    if not points:
        return None
    below = max((size for size in points if size * replicas <= microbatch_size), default=None)
    above = min((size for size in points if size * replicas >= microbatch_size), default=None)
    if below is not None and below == above:
        return _work(points[below], points[below], shares=(replicas, 0, 1), source="measured")
    if below is not None and above is not None:
        shares = (replicas * above - microbatch_size, microbatch_size - replicas * below, above - below)
        return _work(points[below], points[above], shares=shares, source="interpolated")
    nearest = above if above is not None else below
    if nearest is None or not is_linear:
        return None
    work = _work(points[nearest], points[nearest], shares=(microbatch_size, 0, nearest), source="scaled")
    return replace(work, asking=_asking(points[nearest], points[nearest], shares=(replicas, 0, 1)))


_Shares = tuple[int | Fraction, int | Fraction, int]


def _mix(a: int, b: int, *, shares: _Shares) -> int:
    """(a * shares[0] + b * shares[1]) / shares[2], rounded up."""
    return int(-(-(a * shares[0] + b * shares[1]) // shares[2]))


def _work(low: LayerCost, high: LayerCost, *, shares: _Shares, source: str) -> LayerWork:
    """The mean of two costs by their shares."""

    def mix(a: int, b: int) -> int:
        return _mix(a, b, shares=shares)

    return LayerWork(
        forward_ns=mix(low.forward_ns, high.forward_ns),
        input_grad_ns=mix(low.input_grad_ns, high.input_grad_ns),
        weight_grad_ns=mix(low.weight_grad_ns, high.weight_grad_ns),
        backward_ns=mix(low.fused_backward_ns, high.fused_backward_ns),
        recompute_ns=mix(low.recompute_ns, high.recompute_ns),
        kinds_ns=tuple(
            (entry.kind, mix(entry.recompute_ns, _time_of(high, entry.kind))) for entry in low.recompute_kinds
        ),
        source=source,
        asking=_asking(low, high, shares=shares),
    )


def _asking(low: LayerCost, high: LayerCost, *, shares: _Shares) -> tuple[tuple[str, Asking], ...]:
    """What the hosts take: it does not shrink with the samples below the least size that was measured."""
    ends = [_host_times(cost) for cost in (low, high)]
    actions = dict.fromkeys(action for each in ends for action in each)
    pairs = {action: [each.get(action, Asking(0, 0, 0)) for each in ends] for action in actions}
    return tuple(
        (action, Asking(*(_mix(a, b, shares=shares) for a, b in zip(*pair, strict=True))))
        for action, pair in pairs.items()
    )


def _host_times(cost: LayerCost) -> dict[str, Asking]:
    """By action; a B that is not stated is asked for as I and W are."""
    found = {each.action: Asking(each.host_ns, each.first_ns, each.last_ns) for each in cost.host}
    if found and "B" not in found:
        parts = [found[kind] for kind in "IW" if kind in found]
        found["B"] = Asking(sum(part.host for part in parts), parts[0].first, parts[-1].last)
    return found


def _time_of(cost: LayerCost, kind: str) -> int:
    """Layers state the same kinds in all their costs, in any order."""
    return next(entry.recompute_ns for entry in cost.recompute_kinds if entry.kind == kind)


_RECENT = 8
"""Partitions on their devices whose sums are remembered: many orders of one are played in a row."""


class CostModel:
    """Costs of the stages of one problem; remembers what it has added up."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.layer_work = cache(self._layer_work)
        self._traffic_of = lru_cache(maxsize=_RECENT)(self._find_traffic)
        self.remembered = lru_cache(maxsize=_RECENT)(self._make)
        self._cost_on = cache(self._make_stage_cost)
        self._at = cache(lambda size: CostModel(self.problem.at_size(size)))

    def at(self, size: int | None) -> "CostModel":
        """The costs of a microbatch of one of the sizes that the problem lists; None: it lists none."""
        return self if size is None else self._at(size)

    def _make(self, make: Callable[["CostModel", tuple[Stage, ...]], Any], stages: tuple[Stage, ...]) -> Any:
        """What is made of a partition on its devices, once for all orders of it."""
        return make(self, stages)

    def _layer_work(self, name: str, device_type: str, *, width: int, replicas: int | Fraction) -> LayerWork | None:
        """`layer_work` of the layer `name`, or None if it has no cost at that type, width and share."""
        profile = self.problem.profile
        return layer_work(
            profile.by_name[name],
            device_type=device_type,
            width=width,
            replicas=replicas,
            microbatch_size=profile.microbatch_size or 1,
            is_linear=profile.scales_linearly,
            exchange_ns=profile.exchange_ns(device_type),
        )

    def model_ns(self, device_type: str) -> int:
        """F and B of a microbatch in all layers on one device of a type; 0 for layers without a cost there."""
        works = [self.layer_work(name, device_type, width=1, replicas=1) for name in self.problem.profile.by_name]
        return sum(work.forward_ns + work.backward_ns for work in works if work is not None)

    def has_share(self, share: Fraction) -> bool:
        """Whether such a part of a microbatch is whole samples, and every layer has a cost for it on every type.

        Where nobody knows its samples, `max_replicas = 1` says that nobody takes a part of it.
        """
        problem = self.problem
        if share != 1 and problem.profile.microbatch_size is None and problem.options.max_replicas == 1:
            return False
        return problem.profile.is_whole(share) and all(
            self.layer_work(name, device_type, width=1, replicas=1 / share) is not None
            for name in problem.profile.by_name
            for device_type in problem.cluster.device_types
        )

    def group_type(self, group: DeviceGroup) -> str:
        """The device type of a group.

        Raises ValueError if its devices are of different types: layers are measured on groups of one type only.
        """
        types = {self.problem.cluster.by_name[name].type for name in group}
        if len(types) != 1:
            raise ValueError(f"device group {list(group)} mixes the types {sorted(types)}; use devices of one type")
        return types.pop()

    def stage_cost(self, stage: Stage, replica: int) -> StageCost:
        """Cost of replica number `replica` of `stage`; raises ValueError where a cost was not measured."""
        group = stage.replicas[replica]
        share = stage.share_of(replica)
        return self._cost_on(stage, device_type=self.group_type(group), width=len(group), share=share)

    def least_cost(self, stage: Stage, replica: int) -> StageCost:
        """The least that a microbatch takes and leaves, where each may recompute or not; otherwise `stage_cost`."""
        if not self.problem.options.recompute_microbatches:
            return self.stage_cost(stage, replica)
        width, layers = len(stage.replicas[replica]), [self.problem.profile.by_name[name] for name in stage.layers]
        keeping = self.stage_cost(replace(stage, recompute=False, recompute_microbatches=()), replica)
        least = sum(_least_checkpoint(layer, width, by_layer=self.problem.options.recompute_layers) for layer in layers)
        return replace(keeping, held_bytes=_ceil(least, 1 / stage.share_of(replica)))

    def planned_ns(self, stage: Stage, replica: int, *, kind: str) -> int:
        """What an action of kind F, I, W or B takes on the mean, where only some microbatches recompute."""
        whole, keeping = self.stage_cost(stage, replica).duration_ns(kind), stage.keeping
        if keeping is None:
            return whole
        kept, count = self.stage_cost(keeping, replica).duration_ns(kind), self.problem.num_microbatches
        return kept + (whole - kept) * len(stage.recompute_microbatches) // count

    def usual_cost(self, plan: Plan, number: int) -> StageCost:
        """Cost of stage `number` on its first replica: for a microbatch of the middle size where they differ."""
        stage, listed = plan.stages[number], self.problem.microbatches
        if listed is None:
            return self.stage_cost(stage, 0)
        own = plan.stages_in(0)[number] if plan.dealing else stage
        return self.at(sorted(listed)[len(listed) // 2]).stage_cost(own, 0)

    def cost_of_samples(self, stage: Stage, group: DeviceGroup, *, samples: int) -> StageCost:
        """Cost of `stage` on a group that takes so many samples of a microbatch; raises ValueError as `stage_cost`."""
        share = Fraction(samples, self.problem.profile.microbatch_size or 1)
        return self._cost_on(stage, device_type=self.group_type(group), width=len(group), share=share)

    def parts(self, stage: Stage) -> tuple[SplitPart, ...]:
        """The devices that work for a stage with split placement."""
        has_weight_grad = self.problem.profile.trains(stage.layers)
        return make_parts(stage, has_weight_grad=has_weight_grad)

    def part_cost(self, stage: Stage, part: SplitPart) -> StageCost:
        """What one device does and holds for a stage with split placement.

        The owner takes the stash with F and keeps it until its own next action of the microbatch has ended, or gives it
        back with the end of F if it has none. Others hold what they received while they run I or W. Who runs both I and
        W keeps its share of the weight stash from one to the other.
        """
        device_type = self.group_type((part.device,))
        whole = self._cost_on(stage, device_type=device_type, width=1, share=Fraction(1))
        kept = part_of(part.share, whole.weight_stash_bytes) if "W" in part.kinds else 0
        cost = replace(
            whole,
            input_grad_ns=self._shared_input_grad_ns(stage, part, device_type=device_type),
            held_bytes=0,
            stash_bytes=part_of(part.share, whole.stash_bytes),
            weight_stash_bytes=kept,
            weight_workspace_bytes=whole.workspace_bytes + part_of(1 - part.share, whole.weight_stash_bytes),
        )
        if part.kinds == "F":
            return replace(cost, workspace_bytes=whole.workspace_bytes + whole.stash_bytes)
        if part.kinds == "FW":
            return replace(cost, held_bytes=whole.stash_bytes, weight_stash_bytes=whole.stash_bytes)
        if "F" in part.kinds:
            return replace(cost, held_bytes=whole.stash_bytes, stash_bytes=whole.stash_bytes)
        return cost

    def _shared_input_grad_ns(self, stage: Stage, part: SplitPart, *, device_type: str) -> int:
        """I of the part's share of the samples, at what a share of that size costs."""
        if not part.share:
            return 0
        works = [self._require_work(name, device_type, width=1, replicas=1 / part.share) for name in stage.layers]
        overhead = self.problem.profile.overhead_ns(device_type, "I", has_stages=self._has_others(stage))
        return part_of(part.share, sum(work.input_grad_ns for work in works)) + overhead

    def _has_others(self, stage: Stage) -> bool:
        """Whether a plan with this stage has others as well."""
        return len(stage.layers) < len(self.problem.profile.layers)

    def _make_stage_cost(self, stage: Stage, *, device_type: str, width: int, share: Fraction) -> StageCost:
        replicas = share.denominator if share.numerator == 1 else 1 / share
        layers = [self.problem.profile.by_name[name] for name in stage.layers]
        works = [self._require_work(name, device_type, width=width, replicas=replicas) for name in stage.layers]
        sizes = [_require_bytes(layer, width) for layer in layers]
        has_weight_grad = self.problem.profile.trains(stage.layers)
        recomputed = stage.recomputed
        kinds = [recomputed.get(name) for name in stage.layers]
        recompute = sum(
            work.recomputation_ns(kind) for work, kind in zip(works, kinds, strict=True) if kind is not None
        )
        once, weights_once = self._stashes_once(stage, width=width)
        whole_stash = sum(size.stash_bytes for size in sizes) - once
        weight_stash = min(sum(size.weight_stash_bytes for size in sizes) - weights_once, whole_stash)
        stash = _ceil(whole_stash, replicas)
        workspace = max(size.workspace_bytes for size in sizes)
        kept = workspace if self.problem.options.keep_workspace and has_weight_grad else 0
        checkpoints = list(map(checkpoint_bytes, sizes, kinds))
        held = _ceil(sum(checkpoints) - once, replicas)
        largest = max(size.stash_bytes - left for size, left in zip(sizes, checkpoints, strict=True))
        one_by_one = self.problem.options.recompute_in_turn
        has_stages = self._has_others(stage)
        overheads = [self.problem.profile.overhead_ns(device_type, kind, has_stages=has_stages) for kind in KINDS]
        forward, input_grad, weight_grad, backward = overheads
        has_clocks = any(work.asking for work in works)
        cost = StageCost(
            forward_ns=_ceil(sum(work.forward_ns for work in works), replicas) + forward,
            input_grad_ns=_ceil(sum(work.input_grad_ns for work in works) + recompute, replicas) + input_grad,
            weight_grad_ns=_ceil(sum(work.weight_grad_ns for work in works), replicas) + weight_grad,
            backward_ns=_ceil(sum(work.backward_ns for work in works) + recompute, replicas) + backward,
            has_weight_grad=has_weight_grad,
            state_bytes=self.state_bytes(stage, width=width),
            held_bytes=held,
            stash_bytes=stash,
            whole_backward_bytes=min(stash, held + _ceil(largest, replicas)) if one_by_one else stash,
            weight_stash_bytes=_ceil(weight_stash * has_weight_grad, replicas) + kept,
            workspace_bytes=workspace,
            weight_workspace_bytes=workspace - kept,
            clocks=_stage_clocks(works, kinds, replicas=replicas, overheads=overheads) if has_clocks else (),
        )
        return self._in_passes(cost, stage, device_type=device_type) if stage.is_fully_sharded else cost

    def _in_passes(self, cost: StageCost, stage: Stage, *, device_type: str) -> StageCost:
        """The actions of a fully sharded stage, every layer of which takes what it does on the slowest of its devices.

        A card begins once its host has asked for the first kernel, and then gathers.
        """
        found, clocks, cluster = {}, [], self.problem.cluster
        occupancy = max(cluster.collective_occupancy, cluster.sharding_occupancy)
        for kind in KINDS:
            names = stage.layers if kind == "F" else stage.layers[::-1]
            rows = [self._layer_pass(stage, name, kind=kind, is_last=name == stage.layers[-1]) for name in names]
            overhead = max(
                self.problem.profile.overhead_ns(self.group_type(each), kind, has_stages=False, is_sharded=True)
                for each in stage.replicas
            )
            found[kind] = pass_ns(rows, occupancy=occupancy) + overhead
            if cost.clocks:
                work = self._require_work(names[0], device_type, width=1, replicas=len(stage.replicas))
                first = work.first_asked(stage.recomputed.get(names[0], kind) if kind in "IB" else kind)
                host, cross = cost.clocks[KINDS.index(kind)].host_ns, cost.clocks[KINDS.index(kind)].cross_ns
                clocks.append(ActionClocks(host, max(cross, _ceil(first, len(stage.replicas)) + found[kind])))
        return replace(
            cost, forward_ns=found["F"], input_grad_ns=found["I"], backward_ns=found["B"], clocks=tuple(clocks)
        )

    def _layer_pass(self, stage: Stage, name: str, *, kind: str, is_last: bool) -> LayerPass:
        """A layer of a fully sharded stage in an action; the last one's weights stay from F to its backward pass."""
        layer, count, recomputed = self.problem.profile.by_name[name], len(stage.replicas), stage.recomputed.get(name)
        times = []
        for each in sorted({self.group_type(group) for group in stage.replicas}):
            work = self._require_work(name, each, width=1, replicas=count)
            again = 0 if recomputed is None or kind not in "IB" else work.recomputation_ns(recomputed)
            times.append(_ceil(work.matrix(kind).card + again, count))
        if not layer.is_trainable or kind == "W":
            return LayerPass(max(times), 0, 0)
        gather = self.ring_ns(stage.replicas, layer.gathered_bytes, rounds=1, collective="gather")
        scatter = self.ring_ns(stage.replicas, layer.synchronised_bytes, rounds=1, collective="scatter")
        return LayerPass(max(times), 0 if is_last and kind != "F" else gather, scatter if kind == "B" else 0)

    def resident(self, name: str, width: int) -> Resident:
        """What a layer keeps at a width: whatever counts states asks here. ValueError where its bytes are not known."""
        layer = self.problem.profile.by_name[name]
        return Resident(_require_bytes(layer, width).state_bytes, layer.shardable_bytes_at(width))

    def state_bytes(self, stage: Stage, *, width: int) -> int:
        """What a replica of the stage keeps (per device of a group): all but what others hold of the optimizer's."""
        held = sum(self.resident(name, width).state for name in stage.layers)
        if stage.is_sharded or stage.is_split:  # a weight for each layer that uses it
            return held - self._elsewhere_bytes(stage, width=width)
        return held - sum(each.state_bytes for each in self._together(stage.layers, width=width))

    def _stashes_once(self, stage: Stage, *, width: int) -> tuple[int, int]:
        """What layers that keep all count twice, and the stage holds once: of the stash, and of its part for W."""
        kept = [name for name in stage.layers if name not in stage.recomputed]
        found = self._together(kept, width=width)
        return sum(each.stash_bytes for each in found), sum(each.weight_stash_bytes for each in found)

    def _together(self, layers: Collection[str], *, width: int) -> list[HeldOnce]:
        """What some layers of a stage hold together; nothing where several devices share its work."""
        known = self.problem.profile.held_once if width == 1 else ()
        return [each for each in known if each.first in layers and each.second in layers]

    def _elsewhere_bytes(self, stage: Stage, *, width: int) -> int:
        """The part of the optimizer's state, and of gathered weights, that other replicas of the stage hold."""
        if not stage.is_sharded:
            return 0
        whole = sum(self.resident(name, width).shardable for name in stage.layers)
        parts = [whole, self._weight_bytes(stage) if stage.is_gathered or stage.is_fully_sharded else 0]
        parts += [sum(self._part_gradients(stage))] if stage.is_fully_sharded else []
        return sum(part - _ceil(part, len(stage.replicas)) for part in parts)

    def _weight_bytes(self, stage: Stage) -> int:
        """Weights of which replicas that gather them hold a part each."""
        return sum(self.problem.profile.by_name[name].shardable_weight_bytes for name in stage.layers)

    def _part_gradients(self, stage: Stage) -> list[int]:
        """Per layer the gradient bytes of which replicas of a fully sharded stage hold a part each."""
        layers = [self.problem.profile.by_name[name] for name in stage.layers]
        return [each.synchronised_bytes if each.shardable_weight_bytes else 0 for each in layers]

    def exchange_ns(self, stage: Stage, device_type: str, *, kind: str) -> int:
        """How much of an action of kind F, I, W or B the exchanges between the replicas of a stage are."""
        layers = [self.problem.profile.by_name[name] for name in stage.layers]
        counts = {"F": [layer.forward_exchanges for layer in layers], "W": [0]}
        count = sum(counts.get(kind, [layer.backward_exchanges for layer in layers]))
        return count * self.problem.profile.exchange_ns(device_type) if len(stage.replicas) > 1 else 0

    def _require_work(self, name: str, device_type: str, *, width: int, replicas: int | Fraction) -> LayerWork:
        work = self.layer_work(name, device_type, width=width, replicas=replicas)
        if work is None:
            share = 1 / Fraction(replicas)
            raise ValueError(
                f"layer {name!r} has no cost on {device_type!r} at width {width} for {share.numerator}/"
                f"{share.denominator} of the microbatch; measure it there, or use another width or number of replicas"
            )
        return work

    def traffic(self, stages: Sequence[Stage]) -> dict[tuple[int, int], StageTraffic]:
        """Traffic for every pair (producing, consuming stage) that an edge connects, in order of their first edge."""
        return self._traffic_of(tuple(stages))

    def _find_traffic(self, stages: tuple[Stage, ...]) -> dict[tuple[int, int], StageTraffic]:
        stage_of = {name: number for number, stage in enumerate(stages) for name in stage.layers}
        between: dict[tuple[int, int], list[Edge]] = {}
        for edge in self.problem.profile.edges:
            pair = stage_of[edge.producer], stage_of[edge.consumer]
            if pair[0] != pair[1]:
                between.setdefault(pair, []).append(edge)
        return {pair: stage_traffic(edges) for pair, edges in between.items()}

    def find_routes(self, stages: Sequence[Stage]) -> None:
        """Look for the routes of all transfers between the stages at once."""
        wanted = []
        for (a, b), traffic in self.traffic(stages).items():
            for i, j, share, whole in replica_overlaps(stages[a], stages[b]):
                sender, receiver = stages[a].replicas[i][0], stages[b].replicas[j][0]
                if sender != receiver:
                    wanted.append((sender, receiver, _ceil(traffic.forward_bytes * share, whole)))
                    wanted.append((receiver, sender, _ceil(traffic.backward_bytes * share, whole)))
        for stage in stages:
            if len(stage.replicas) > 1:
                sizes = [self.gradient_bytes(stage), *([self.gathered_bytes(stage)] if stage.is_sharded else [])]
                ring = zip(stage.replicas, (*stage.replicas[1:], stage.replicas[0]), strict=True)
                wanted += [(a[0], b[0], size) for a, b in ring if a[0] != b[0] for size in sizes]
        self.problem.cluster.find_routes(wanted)

    def static_bytes(self, stages: Sequence[Stage]) -> dict[str, int]:
        """Bytes that stay resident on every used device: state, a bucket, and receive buffers for edges from elsewhere.

        A device of replicated stages holds the largest of their buckets: they are reduced one after the other.
        With split placement the owner alone holds the state; who runs I for it holds a copy of the weights, who runs W
        a gradient, and what arrives for them lies in receive buffers as well.
        """
        static = self._state_and_buckets(stages)
        self._add_receive_buffers(static, stages)
        for stage in stages:
            if stage.is_split:
                self._add_part_bytes(static, stage)
        return static

    def static_bytes_of(self, plan: Plan) -> dict[str, int]:
        """`static_bytes` of a plan; where microbatches differ, a receive buffer has room for the largest that comes."""
        listed = self.problem.microbatches
        if listed is None:
            return self._with_gathered(self.static_bytes(plan.stages), plan)
        if not plan.dealing:
            return self.at(max(listed)).static_bytes(plan.stages)
        static = self._state_and_buckets(plan.stages)
        largest = {assignment: max(listed[m] for m in assignment) for assignment in set(plan.dealing)}
        for number, assignment in enumerate(plan.dealing):
            self.at(largest[assignment])._add_receive_buffers(static, plan.stages_in(number))
        return static

    def _with_gathered(self, static: dict[str, int], plan: Plan) -> dict[str, int]:
        """And the gathered weights: the largest of a device, as many as are active at a time."""
        if plan.max_active_stages is None:
            return static
        sizes: dict[str, list[int]] = {}
        for stage in plan.stages:
            for device in (device for group in stage.replicas for device in group if stage.is_gathered):
                sizes.setdefault(device, []).append(self._weight_bytes(stage))
        more = {device: most_gathered(held, most=plan.max_active_stages) for device, held in sizes.items()}
        return {device: size + more.get(device, 0) for device, size in static.items()}

    def _state_and_buckets(self, stages: Sequence[Stage]) -> dict[str, int]:
        static: dict[str, int] = {}
        bucket: dict[str, int] = {}
        for stage in stages:
            own = self.reduction_bytes(stage)
            for group in stage.replicas:
                for device in group:
                    static[device] = static.get(device, 0) + self.state_bytes(stage, width=len(group))
                    bucket[device] = max(own, bucket.get(device, 0))
        return {device: size + bucket[device] for device, size in static.items()}

    def _add_receive_buffers(self, static: dict[str, int], stages: Sequence[Stage]) -> None:
        """Room for what enters a stage from another device."""
        buffers = self.problem.options.receive_buffers
        for (a, b), traffic in self.traffic(stages).items():
            is_split = stages[a].is_split or stages[b].is_split
            for receiver, sender, size in ((b, a, traffic.forward_bytes), (a, b, traffic.backward_bytes)):
                if is_split and receiver == a:
                    self._add_gradient_buffers(static, (stages[a], stages[b]), size=size)
                    continue
                to, whole = stages[receiver], _ceil(buffers * size, len(stages[receiver].replicas))
                for replica, group in enumerate(to.replicas):
                    if stages[sender].replicas != (group,):
                        room = _ceil(buffers * size, 1 / to.share_of(replica)) if to.samples else whole
                        for device in group:
                            static[device] += room

    def _add_gradient_buffers(self, static: dict[str, int], ends: tuple[Stage, Stage], *, size: int) -> None:
        """Receive buffers for the gradient of the second stage on the devices that run I of the first."""
        buffers = self.problem.options.receive_buffers
        senders = [(taker, self._devices_at(ends[1], taker.number)) for taker in input_grad_ranges(ends[1])]
        for taker in input_grad_ranges(ends[0]):
            group = self._devices_at(ends[0], taker.number)
            if any(common(taker, other) and devices != group for other, devices in senders):
                for device in group:
                    received = part_of(taker.end - taker.start, buffers * size)
                    static[device] = static.get(device, 0) + received

    def _devices_at(self, stage: Stage, index: int) -> DeviceGroup:
        return (self.parts(stage)[index].device,) if stage.is_split else stage.replicas[index]

    def _add_part_bytes(self, static: dict[str, int], stage: Stage) -> None:
        """What the parts of a stage with split placement hold besides the state of the owner."""
        whole, buffers = self.stage_cost(stage, 0), self.problem.options.receive_buffers
        owner, *_ = parts = self.parts(stage)
        for part in parts:
            size = 0
            if part is not owner and part.share:
                size += self.parameter_bytes(stage) + buffers * part_of(part.share, whole.stash_bytes)
            if part is not owner and "W" in part.kinds:
                size += self.gradient_bytes(stage)
            if "W" in part.kinds:
                size += buffers * part_of(1 - part.share, whole.weight_stash_bytes)
            static[part.device] = static.get(part.device, 0) + size

    def reduction_bytes(self, stage: Stage) -> int:
        """What a replica of the stage holds to reduce its gradients; 0 where there is one replica.

        A reduce-scatter holds what it sends and what comes a second time, an all-reduce nothing where gradients are
        views of buckets; both what the profile says of any reduction. Where layers are gathered and reduced one by one,
        it is those that are whole.
        """
        if len(stage.replicas) == 1:
            return 0
        if stage.is_fully_sharded:
            weights = [self.problem.profile.by_name[name].shardable_weight_bytes for name in stage.layers]
            return self.problem.profile.reduction_bytes + most_whole(weights, self._part_gradients(stage))
        profile, times = self.problem.profile, 2 if stage.is_sharded else 1
        most = 0 if profile.gradient_as_bucket_view and not stage.is_sharded else profile.bucket_bytes
        return profile.reduction_bytes + (min(most, times * self.gradient_bytes(stage)) if most else 0)

    def parameter_bytes(self, stage: Stage) -> int:
        """Bytes of the weights of a stage."""
        return sum(self.problem.profile.by_name[name].parameter_bytes for name in stage.layers)

    def gradient_bytes(self, stage: Stage) -> int:
        """Gradient bytes that the replicas of a stage synchronise (per device of a group)."""
        layers, width = [self.problem.profile.by_name[name] for name in stage.layers], len(stage.replicas[0])
        return _with_parts([(each.synchronised_bytes_at(width), each.synchronised_bytes) for each in layers], width)

    def gathered_bytes(self, stage: Stage) -> int:
        """Bytes of weights that sharding replicas of a stage gather after a step (per device of a group)."""
        layers, width = [self.problem.profile.by_name[name] for name in stage.layers], len(stage.replicas[0])
        return _with_parts([(each.gathered_bytes_at(width), each.gathered_bytes) for each in layers], width)

    def synchronisation_ns(self, stage: Stage) -> int:
        """Time of a replicated stage's all-reduce, or reduce-scatter where it shards; 0 if none follows its actions."""
        rounds = 1 if stage.is_sharded else 2
        if len(stage.replicas) == 1 or stage.is_fully_sharded:
            return 0
        return 0 if self._is_frozen(stage) else self.ring_ns(stage.replicas, self.gradient_bytes(stage), rounds=rounds)

    def ring_links(self, stage: Stage) -> tuple[int, ...]:
        """Links of the all-reduce of a stage's replicas."""
        size = self.gradient_bytes(stage)
        ring = zip(stage.replicas, (*stage.replicas[1:], stage.replicas[0]), strict=True)
        links = (link for a, b in ring for link in self.problem.cluster.route(a[0], b[0], num_bytes=size).links)
        return tuple(dict.fromkeys(links))

    def gathering_ns(self, stage: Stage) -> int:
        """Time in which sharding replicas of a stage gather its weights once; 0 for others."""
        if not stage.is_sharded or self._is_frozen(stage):
            return 0
        return self.ring_ns(stage.replicas, self.gathered_bytes(stage), rounds=1, collective="gather")

    def _is_frozen(self, stage: Stage) -> bool:
        return all(self.problem.profile.by_name[name].frozen for name in stage.layers)

    def ring_ns(
        self, groups: Sequence[DeviceGroup], size: int, *, rounds: int, collective: Collective = "reduction"
    ) -> int:
        """Ring all-reduce (2 rounds), or either half of it, of so many bytes over groups; 0 for a single one.

        Rounds x (r - 1) / r x bytes / slowest link + rounds x (r - 1) x largest latency over the ring, in listed order;
        where a link states times by size, no less than so many messages of bytes / r take on it, and where it states
        what a step of the collective's ring takes, no less than so many steps.
        """
        replicas = len(groups)
        if replicas == 1:
            return 0
        routes = [
            self.problem.cluster.route(a[0], b[0], num_bytes=size)
            for a, b in zip(groups, (*groups[1:], groups[0]), strict=True)
        ]
        slowest = min(route.bandwidth_bytes_per_s for route in routes)
        latency = max(route.latency_ns for route in routes)
        moving = _ceil(rounds * (replicas - 1) * size * 10**9, replicas * slowest)
        part, steps = _ceil(size, replicas), rounds * (replicas - 1)
        by_size = [link.moving_ns(part) for route in routes for link in route.sized]
        reducing = [link.step_ns(part, collective=collective) for route in routes for link in route.reducing]
        return max(max(moving, steps * max(by_size, default=0)) + steps * latency, steps * max(reducing, default=0))

    def steps_ns(self, stages: Sequence[Stage]) -> dict[str, int]:
        """When every device of a plan is done, counted from the last synchronisation.

        It takes the profile's time and the steps of all layers that it holds; a group of several takes each stage's in
        equal parts, and so do replicas that shard. These gather their weights then, stage by stage, each stage once all
        of its devices have come to it; those that shard their weights do not. With split placement the owner takes the
        steps.
        """
        profile = self.problem.profile
        closing = profile.optimizer_ns + (profile.stages_optimizer_ns if len(stages) > 1 else 0)
        found = {device: closing for stage in stages for group in stage.groups for device in group}
        if profile.has_layer_steps:
            for stage, group in ((each, group) for each in stages for group in each.replicas):
                whole = sum(profile.by_name[name].optimizer_ns(self.group_type(group)) for name in stage.layers)
                for device in group:
                    found[device] += _ceil(whole, len(group) * (len(stage.replicas) if stage.is_sharded else 1))
        for stage in (each for each in stages if each.gathers_after_step):
            devices = [device for group in stage.replicas for device in group]
            end = max(found[device] for device in devices) + self.gathering_ns(stage)
            found.update(dict.fromkeys(devices, end))
        return found

    def optimizer_ns(self, stages: Sequence[Stage]) -> int:
        """What follows the last synchronisation, until the slowest device is done."""
        return max(self.steps_ns(stages).values())

    def describe_timings(self) -> dict[str, str]:
        """How the times of the problem were taken, for a plan's evidence."""
        profile, cluster = self.problem.profile, self.problem.cluster
        known = {each.device_type for each in profile.action_overhead_ns}
        links = [link.message_overhead_ns is not None for link in cluster.links]
        return {
            "conditions": profile.conditions or "not stated",
            "action_overhead": _how_many([name in known for name in cluster.device_types]),
            "message_overhead": _how_many(links),
        }

    def unmeasured_costs(self, stages: Sequence[Stage]) -> tuple[str, ...]:
        """The costs among `stages` that were interpolated or scaled, in words, for a plan's evidence."""
        found: dict[tuple[str, str, int, Fraction], int] = {}
        for stage in stages:
            for group, shares in self._shares_on(stage).items():
                for name, share in itertools.product(stage.layers, sorted(shares, reverse=True)):
                    work = self.layer_work(name, group[0], width=group[1], replicas=1 / share)
                    if work is not None and work.source != "measured":
                        key = (work.source, *group, share)
                        found[key] = found.get(key, 0) + 1
        return tuple(
            f"{count} layers on {device_type} at width {width}: {source} to {share.numerator}/{share.denominator} of "
            "the microbatch"
            for (source, device_type, width, share), count in found.items()
        )

    def unmeasured_costs_of(self, plan: Plan) -> tuple[str, ...]:
        """`unmeasured_costs` of a plan; where microbatches differ, counted over all sizes that a stage runs."""
        listed = self.problem.microbatches
        if listed is None:
            return self.unmeasured_costs(plan.stages)
        count: dict[tuple[str, str, int], int] = {}
        for size in self.problem.sizes:
            for stage in plan.stages:
                for replica, group in enumerate(stage.replicas):
                    share = Fraction(1) if plan.dealing else stage.share_of(replica)
                    for name in stage.layers if not plan.dealing or replica == 0 else ():
                        place = self.group_type(group), len(group)
                        work = self.at(size).layer_work(name, place[0], width=place[1], replicas=1 / share)
                        if work is not None and work.source != "measured":
                            count[work.source, *place] = count.get((work.source, *place), 0) + 1
        return tuple(
            f"{number} costs on {device_type} at width {width}, of a layer at a size of microbatches: {source}"
            for (source, device_type, width), number in count.items()
        )

    def assumed_divisible(self, stages: Sequence[Stage]) -> tuple[int, ...]:
        """The stages of which several devices take equal parts of a microbatch of unknown size."""
        if self.problem.profile.microbatch_size is not None:
            return ()
        return tuple(
            number
            for number, stage in enumerate(stages)
            if len(stage.replicas) > 1 or len(self._input_grad_parts(stage)) > 1
        )

    def _shares_on(self, stage: Stage) -> dict[tuple[str, int], set[Fraction]]:
        """Per device type and width of its groups: for which shares of a microbatch they run actions of a stage."""
        parts = {part.share for part in self._input_grad_parts(stage)}
        found: dict[tuple[str, int], set[Fraction]] = {}
        for number, group in enumerate(stage.groups):
            own = {Fraction(1), *parts} if stage.is_split else {stage.share_of(number)}
            found.setdefault((self.group_type(group), len(group)), set()).update(own)
        return found

    def _input_grad_parts(self, stage: Stage) -> list[SplitPart]:
        """The parts that share I of a stage with split placement."""
        return [part for part in self.parts(stage) if part.share] if stage.is_split else []


def _stage_clocks(
    works: Sequence[LayerWork],
    kinds: Sequence[str | None],
    *,
    replicas: int | Fraction,
    overheads: Sequence[int],
) -> tuple[ActionClocks, ...]:
    """F, I, W and B of a stage on one of its replicas, the layers one after the other, backwards but in F.

    A layer that recomputes does so right before its I or B. The overhead of an action is its host's and its card's.
    """
    found = []
    for kind, overhead in zip(KINDS, overheads, strict=True):
        rows = list(zip(works, kinds, strict=True))
        matrices = []
        for work, recomputed in rows if kind == "F" else reversed(rows):
            if recomputed is not None and kind in "IB":
                matrices.append(work.matrix(recomputed))
            matrices.append(work.matrix(kind))
        whole = product(matrices)
        found.append(ActionClocks(_ceil(whole.host, replicas) + overhead, _ceil(whole.cross, replicas) + overhead))
    return tuple(found)


def checkpoint_bytes(size: Layer | WidthBytes, kind: str | None) -> int:
    """What F leaves of a layer for its backward where it recomputes by a kind; None: the stash."""
    if kind is None:
        return size.stash_bytes
    others = {entry.kind: entry.checkpoint_bytes for entry in size.recompute_kinds}
    return size.checkpoint_bytes if kind == FULL_RECOMPUTATION else others[kind]


def _least_checkpoint(layer: Layer, width: int, *, by_layer: bool) -> int:
    """The least that F leaves of a layer at a width, by any kind of recomputation where layers may choose."""
    size = _require_bytes(layer, width)
    kinds = [entry.kind for entry in size.recompute_kinds] if by_layer else []
    return min(checkpoint_bytes(size, kind) for kind in (None, FULL_RECOMPUTATION, *kinds))


def stage_traffic(edges: Iterable[Edge]) -> StageTraffic:
    """What the edges between two stages carry: of every producer the most that any of its consumers takes."""
    outputs: dict[str, tuple[int, int]] = {}
    has_gradient = False
    for edge in edges:
        forward, backward = outputs.get(edge.producer, (0, 0))
        outputs[edge.producer] = max(forward, edge.bytes), max(backward, edge.backward_bytes)
        has_gradient = has_gradient or edge.has_gradient
    return StageTraffic(
        forward_bytes=sum(forward for forward, _ in outputs.values()),
        backward_bytes=sum(backward for _, backward in outputs.values()),
        has_gradient=has_gradient,
    )


def overlap(i: int, j: int, *, num_senders: int, num_receivers: int) -> tuple[int, int]:
    """Share of a microbatch that sender `i` of `num_senders` holds and receiver `j` of `num_receivers` needs.

    Both sides cut the sample range evenly; the share is the numerator and denominator of an exact fraction.
    """
    start = max(i * num_receivers, j * num_senders)
    end = min((i + 1) * num_receivers, (j + 1) * num_senders)
    return max(0, end - start), num_senders * num_receivers


def overlaps(num_senders: int, num_receivers: int) -> list[tuple[int, int, int, int]]:
    """All pairs of replicas that share samples, by sender, then receiver: both, and the share as in `overlap`."""
    pairs = []
    for i in range(num_senders):
        first = i * num_receivers // num_senders
        for j in range(first, -(-(i + 1) * num_receivers // num_senders)):
            pairs.append((i, j, *overlap(i, j, num_senders=num_senders, num_receivers=num_receivers)))
    return pairs


def replica_overlaps(sender: Stage, receiver: Stage) -> list[tuple[int, int, int, int]]:
    """All pairs of replicas of two stages that share samples, as `overlaps` lists them."""
    if not sender.samples and not receiver.samples:
        return overlaps(len(sender.replicas), len(receiver.replicas))
    ranges = itertools.product(replica_ranges(sender), replica_ranges(receiver))
    shares = [(a.number, b.number, common(a, b)) for a, b in ranges]
    return [(i, j, share.numerator, share.denominator) for i, j, share in shares if share]


def _with_parts(stated: Iterable[tuple[int | None, int]], width: int) -> int:
    """Bytes per device of a group: as stated, and the others, which are those of the whole layer, in equal parts."""
    pairs = list(stated)
    in_equal_parts = sum(whole for size, whole in pairs if size is None)
    return sum(size for size, _ in pairs if size is not None) + _ceil(in_equal_parts, width)


def _how_many(measured: Sequence[bool]) -> str:
    if not any(measured):
        return "not measured"
    return "measured" if all(measured) else "measured in part"


def _require_bytes(layer: Layer, width: int) -> Layer | WidthBytes:
    size = layer.bytes_at(width)
    if size is None:
        raise ValueError(f"layer {layer.name!r} has no bytes at width {width}; give them under `wider`")
    return size


def _ceil(numerator: int, denominator: int | Fraction) -> int:
    return -(-numerator // denominator)
