"""What a run teaches: samples with their spread, and a profile and cluster whose figures are those of the run.

docs/reference/comparison.md says which figure becomes which entry.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.fidelity.attribution import Comparison, TransferPart
from planner.fidelity.expected import expected
from planner.layout.costs import CostModel
from planner.plan import Stage
from profiles.cluster import Cluster, Link
from profiles.field_rules import MAX_NANOSECONDS
from profiles.model_profile import ActionOverhead, Layer, LayerCost, Measurement, ModelProfile, RecomputeBytes

_FIELDS = {"F": "forward_ns", "I": "input_grad_ns", "W": "weight_grad_ns", "B": "backward_ns"}

Ratios = Mapping[str, tuple[int, int]]
"""Per kind of action: what it should take over what the profile says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedQuantity:
    """One quantity of a run beside its prediction."""

    what: str
    """`duration`, `overhead`, `transfer`, `synchronisation` or `optimizer`."""
    subject: str
    """Stage and kind of action (`2F`), the way of a transfer (`d0 to d1, 0 to 1`), or a device."""
    predicted_ns: int
    """As planned."""
    samples: tuple[int, ...]
    """As measured, in nanoseconds; at least one."""

    @property
    def median_ns(self) -> int:
        """Middle of the samples."""
        return round(statistics.median(self.samples))

    @property
    def expected_ns(self) -> int:
        """What it takes on average, which sums are predicted with."""
        return round(expected(self.samples))

    def as_measurement(self, source: str) -> Measurement:
        """The entry of a profile."""
        low, high = _quartiles(self.samples)
        return Measurement(
            what=self.what,
            subject=self.subject,
            count=len(self.samples),
            median_ns=self.median_ns,
            low_ns=low,
            high_ns=high,
            source=source,
        )


def _quartiles(samples: Sequence[int]) -> tuple[int, int]:
    if len(samples) == 1:
        return samples[0], samples[0]
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return round(low), round(high)


def find_all(comparison: Comparison) -> tuple[CalibratedQuantity, ...]:
    """All quantities of the iterations of a comparison: by stage and kind, by way, and by device."""
    predicted = comparison.predicted()
    measured = [comparison.measured(iteration) for iteration in comparison.iterations]
    cells: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for device, place in comparison.order:
        action = comparison.device_orders[device][place]
        cells[f"{action.stage}{action.kind}"].append((device, place))
    found = []
    for what, field, planned in (
        ("duration", "duration_ns", predicted.duration_ns),
        ("overhead", "overhead_ns", predicted.launch_ns),
    ):
        for subject, keys in sorted(cells.items()):
            samples = tuple(getattr(each, field)[key] for each in measured for key in keys)
            usual = round(statistics.median(planned[key] for key in keys))
            found.append(CalibratedQuantity(what=what, subject=subject, predicted_ns=usual, samples=samples))
    found += _transfers(comparison)
    for what, field in (("synchronisation", "tail_ns"), ("optimizer", "optimizer_ns")):
        for device in comparison.device_orders:
            samples = tuple(getattr(each, field)[device] for each in measured)
            usual = getattr(predicted, field)[device]
            found.append(CalibratedQuantity(what=what, subject=device, predicted_ns=usual, samples=samples))
    return tuple(found)


def _transfers(comparison: Comparison) -> list[CalibratedQuantity]:
    return [
        CalibratedQuantity(
            what="transfer",
            subject=f"{channel.sender} to {channel.receiver}, {channel.from_stage} to {channel.to_stage}",
            predicted_ns=_route_ns(comparison, channel),
            samples=tuple(samples),
        )
        for channel, samples in comparison.lag_samples().items()
        if samples
    ]


def _route_ns(comparison: Comparison, channel: TransferPart) -> int:
    route = comparison.problem.cluster.route(channel.sender, channel.receiver, num_bytes=channel.num_bytes)
    return route.duration_ns(channel.num_bytes)


def calibrate_profile(profile: ModelProfile, comparison: Comparison, *, source: str) -> ModelProfile:
    """`profile` with the durations, overheads and optimizer time of the run; `source`: where they come from.

    Raises ValueError if it is not a profile of the plan's layers, or replicas of a stage take unequal shares: a stage's
    durations are those of all its replicas.
    """
    for number, stage in enumerate(comparison.plan.stages):
        if stage.samples:
            raise ValueError(
                f"stage {number} has samples = {list(stage.samples)}, but calibration needs equal shares; run a plan "
                "made with unequal_shares = false"
            )
    missing = [name for stage in comparison.plan.stages for name in stage.layers if name not in profile.by_name]
    if missing:
        raise ValueError(f"profile {profile.name!r} has no layer {missing[0]!r}; calibrate the profile of the plan")
    findings = find_all(comparison)
    usual = {(finding.what, finding.subject): finding.expected_ns for finding in findings}
    overheads = _common_overheads(comparison, usual)
    layers = dict(profile.by_name)
    for number, stage in enumerate(comparison.plan.stages):
        ratios_of = _stage_ratios(comparison, number, stage=stage, usual=usual, overheads=overheads)
        for device_type, ratios in ratios_of.items():
            for name in stage.layers:
                layers[name] = scaled_layer(layers[name], device_type, ratios=ratios)
    closing_ns, steps_ns = _closing_ns(comparison), _steps_ns(profile, comparison)
    if closing_ns < steps_ns:
        layers = {name: with_shorter_step(layer, (closing_ns, steps_ns)) for name, layer in layers.items()}
    others = [each for each in profile.action_overhead_ns if each.device_type not in overheads]
    note = f"Calibrated with {source}: durations of stages shared out among their layers, overheads per action."
    if profile.has_host_times:
        note += " Durations include what actions waited for the host, whose times are left out."
    made = [_make_overhead(name, found, exchange_ns=profile.exchange_ns(name)) for name, found in overheads.items()]
    known = {each.device_type: each for each in profile.action_overhead_ns}
    has_stages, closing_ns = len(comparison.plan.stages) > 1, max(0, closing_ns - steps_ns)
    always_ns = min(closing_ns, profile.optimizer_ns) if has_stages and profile.stages_optimizer_ns else closing_ns
    return replace(
        profile.without_host_times(),
        layers=tuple(layers[layer.name].without_host_times() for layer in profile.layers),
        action_overhead_ns=(
            *others,
            *(_by_stages(each, known.get(each.device_type), has_stages=has_stages) for each in made),
        ),
        optimizer_ns=always_ns,
        stages_optimizer_ns=closing_ns - always_ns if has_stages else profile.stages_optimizer_ns,
        provenance=f"{profile.provenance} {note}".strip(),
        probe=None,
        measurements=(*profile.measurements, *(finding.as_measurement(source) for finding in findings)),
    )


def _stage_types(comparison: Comparison, stage: Stage) -> dict[str, int]:
    """Device types of a stage, each with a replica of that type."""
    costs = CostModel(comparison.problem)
    return {costs.group_type(group): replica for replica, group in enumerate(stage.replicas)}


def _common_overheads(comparison: Comparison, usual: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Per device type and kind what every action needs: the least of the stages' averages, never below zero."""
    found: dict[str, dict[str, int]] = {}
    for number, stage in enumerate(comparison.plan.stages):
        for device_type in _stage_types(comparison, stage):
            for kind in _FIELDS:
                if (needed := usual.get(("overhead", f"{number}{kind}"))) is not None:
                    kinds = found.setdefault(device_type, {})
                    kinds[kind] = min(max(0, needed), kinds.get(kind, MAX_NANOSECONDS))
    return found


def _make_overhead(device_type: str, found: Mapping[str, int], *, exchange_ns: int) -> ActionOverhead:
    """Kinds that did not run cost as much as those that did: I and W as B, B as the larger of I and W."""
    back = found.get("B", max(found.get("I", 0), found.get("W", 0)))
    split = found.get("I", back), found.get("W", back)
    return ActionOverhead(
        device_type=device_type,
        forward_ns=found.get("F", 0),
        input_grad_ns=split[0],
        weight_grad_ns=split[1],
        backward_ns=min(back, sum(split)),
        exchange_ns=exchange_ns,
    )


_STAGES_FIELDS = {kind: f"stages_{name}" for kind, name in _FIELDS.items()}


def _by_stages(total: ActionOverhead, before: ActionOverhead | None, *, has_stages: bool) -> ActionOverhead:
    """What actions of a run cost: a run of several stages tells what all plans pay and what those add together. What
    full shards add stays as it was.
    """
    if before is None:
        return total
    more = {name: getattr(before, name) for name in _STAGES_FIELDS.values()}
    total = replace(total, **{name: getattr(before, name) for name in ("sharded_forward_ns", "sharded_backward_ns")})
    if not has_stages:
        return replace(total, **more)
    return divided(total, before) if any(more.values()) else total


def divided(total: ActionOverhead, always: ActionOverhead) -> ActionOverhead:
    """What actions cost in plans of several stages, as what they cost in every plan and what those add."""
    sums = {kind: getattr(total, name) for kind, name in _FIELDS.items()}
    least = {kind: min(sums[kind], getattr(always, name)) for kind, name in _FIELDS.items()}
    least["B"] = min(least["B"], least["I"] + least["W"])
    more = {kind: sums[kind] - least[kind] for kind in _FIELDS}
    more["B"] = min(more["B"], more["I"] + more["W"])
    fields = {name: least[kind] for kind, name in _FIELDS.items()}
    return replace(total, **fields, **{name: more[kind] for kind, name in _STAGES_FIELDS.items()})


def _stage_ratios(
    comparison: Comparison,
    number: int,
    *,
    stage: Stage,
    usual: Mapping[tuple[str, str], int],
    overheads: Mapping[str, Mapping[str, int]],
) -> Mapping[str, Ratios]:
    """Per device type of the stage and kind that ran: what its layers took over what was planned for them.

    What its actions need beyond the overhead that all have counts as theirs; exchanges of replicas stay as they were.
    """
    costs, profile = CostModel(comparison.problem), comparison.problem.profile
    ratios: dict[str, dict[str, tuple[int, int]]] = {}
    for device_type, replica in _stage_types(comparison, stage).items():
        ratios[device_type] = {}
        for kind, common in overheads.get(device_type, {}).items():
            exchanged = costs.exchange_ns(stage, device_type, kind=kind)
            launch = profile.overhead_ns(device_type, kind, has_stages=len(comparison.plan.stages) > 1)
            planned = costs.planned_ns(stage, replica, kind=kind) - launch - exchanged
            if planned > 0 and ("duration", f"{number}{kind}") in usual:
                extra = max(0, usual["overhead", f"{number}{kind}"]) - common
                layers_ns = max(0, usual["duration", f"{number}{kind}"] - exchanged)
                ratios[device_type][kind] = (layers_ns + extra, planned)
    return ratios


def scaled_layer(layer: Layer, device_type: str, *, ratios: Ratios) -> Layer:
    """Every cost on this device type at width 1, kind by kind."""
    return replace(
        layer,
        costs=tuple(
            _scaled_cost(cost, ratios) if cost.device_type == device_type and cost.width == 1 else cost
            for cost in layer.costs
        ),
    )


def _scaled_cost(cost: LayerCost, ratios: Ratios) -> LayerCost:
    """A kind that did not run goes with those that did: I and W with B, B with I and W."""
    fused, split = cost.fused_backward_ns, cost.input_grad_ns + cost.weight_grad_ns
    input_grad = _scale(cost.input_grad_ns, ratios.get("I", ratios.get("B")))
    weight_grad = _scale(cost.weight_grad_ns, ratios.get("W", ratios.get("B")))
    backward = _scale(fused, ratios.get("B", (input_grad + weight_grad, split) if split else None))
    back = ratios.get("I", ratios.get("B"))
    return replace(
        cost.with_recomputation(lambda extra: _scale(extra, back)),
        forward_ns=_scale(cost.forward_ns, ratios.get("F")),
        input_grad_ns=input_grad,
        weight_grad_ns=weight_grad,
        backward_ns=backward if backward < input_grad + weight_grad else None,
    )


def _scale(nanoseconds: int, ratio: tuple[int, int] | None) -> int:
    """Rounded up, so that the sum over a stage's layers is not below what was measured."""
    return nanoseconds if ratio is None else -(-nanoseconds * ratio[0] // ratio[1])


def _closing_ns(comparison: Comparison) -> int:
    """On average over iterations, the longest time from a device's last action to its end, all-reduces aside."""
    replicated = {group[0] for stage in comparison.plan.stages if len(stage.replicas) > 1 for group in stage.replicas}
    ends = []
    for iteration in comparison.iterations:
        rows = iteration.rows.items()
        ends.append(
            max(row.end_ns - (row.reduced_ns if d in replicated else row.actions[-1].end_ns) for d, row in rows)
        )
    return max(0, round(expected(ends)))


def _steps_ns(profile: ModelProfile, comparison: Comparison) -> int:
    """What the layers of the device with most to do are said to take for the optimizer's step."""
    problem = replace(comparison.problem, profile=replace(profile, optimizer_ns=0))
    return CostModel(problem).optimizer_ns(comparison.plan.stages)


def with_shorter_step(layer: Layer, ratio: tuple[int, int]) -> Layer:
    """Its step in the ratio of the first to the second, rounded down: no device takes longer than was measured."""
    costs = (replace(cost, optimizer_ns=cost.optimizer_ns * ratio[0] // ratio[1]) for cost in layer.costs)
    return replace(layer, costs=tuple(costs))


def calibrate_cluster(cluster: Cluster, comparison: Comparison) -> Cluster:
    """`cluster` with the latency of every direct link moved by how much longer the run's transfers took over it."""
    extra: dict[int, list[int]] = defaultdict(list)
    for channel, lag in comparison.lags.items():
        if not {channel.sender, channel.receiver} <= set(cluster.by_name):
            raise ValueError(
                f"cluster {cluster.name!r} lacks {channel.sender!r} or {channel.receiver!r}; give the plan's cluster"
            )
        route = cluster.route(channel.sender, channel.receiver, num_bytes=channel.num_bytes)
        if len(route.links) == 1:
            extra[route.links[0] // 2].append(lag - route.duration_ns(channel.num_bytes))
    links = tuple(_moved(link, extra.get(number, ())) for number, link in enumerate(cluster.links))
    return replace(cluster, links=links)


def _moved(link: Link, extra: Iterable[int]) -> Link:
    samples = list(extra)
    if not samples:
        return link
    return link.later_by(round(statistics.median(samples)))


def with_held(layer: Layer, permille: int) -> Layer:
    """The layer with that part of stash and growing workspace, rounded up; what recomputation leaves is no more."""
    always = layer.fixed_workspace_bytes
    stash = math.ceil(layer.stash_bytes * permille / 1000)
    kinds = tuple(
        RecomputeBytes(kind=each.kind, checkpoint_bytes=min(stash, each.checkpoint_bytes))
        for each in layer.recompute_kinds
    )
    return replace(
        layer,
        stash_bytes=stash,
        workspace_bytes=always + math.ceil((layer.workspace_bytes - always) * permille / 1000),
        weight_stash_bytes=min(stash, math.ceil(layer.weight_stash_bytes * permille / 1000)),
        checkpoint_bytes=min(stash, layer.checkpoint_bytes),
        recompute_kinds=kinds,
    )
