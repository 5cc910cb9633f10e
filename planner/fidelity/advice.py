"""What would help a job, from its trace alone: what is slow, and what other orders, dealings and cuts would bring."""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.dealing import Annealing, balance_durations, bound_dealings
from planner.fidelity.balance_advice import as_step, durations_of, order_1f1b, rebalance, transfer_of
from planner.fidelity.chunk_advice import advise_chunks
from planner.fidelity.partition_advice import recut
from planner.fidelity.placement_advice import NOTABLE, Remedy, describe_placing, device_factors, place_anew
from planner.fidelity.run_pipelines import find_shape
from planner.fidelity.run_replay import replay_ns
from profiles.cluster import Cluster, Device, Link
from profiles.field_rules import MAX_BYTES
from profiles.importers.straggler import Key, ReplicaKey, RunStep
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from profiles.workload import Workload

_LEAST_EFFECT = 1000
"""A device or link whose slowness costs less than this fraction (1 / 1000) of the step is not named."""

FEWEST_PEERS = 3
"""So many devices have to do the same for one of them to be told from its peers."""

_MOST_ALIKE = 0.05
"""Microbatches whose actions differ by no more, of one stage and kind, are identical (quartiles over median)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """Something that takes longer than its peers."""

    what: str
    """A stage, device or link, in words."""
    factor: float
    """Its durations over those of its peers."""
    effect_ns: int
    """How much earlier the median step would end were it as its peers, by replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """All that is said about a trace."""

    measured_ns: int
    """Of the median step."""
    replayed_ns: int
    """The same under the contract."""
    busiest_stage: int
    """With the most work in the slowest pipeline; of a device with several the heaviest."""
    busy: float
    """The part of the step in which its device computes."""
    slow: tuple[Slow, ...]
    """Largest effect first."""
    remedies: tuple[Remedy, ...]
    """Other order, other dealing, other placing, other cut."""
    is_alike: bool
    """Whether all microbatches take the same, so that a plan for identical ones can be made."""
    num_pipelines: int
    """With fewer than `FEWEST_PEERS` no device is named: which of two that differ is the unusual one is not told."""
    num_stages: int
    """Of a pipeline, as the trace has them."""
    is_plain: bool
    """Whether devices have one stage and run whole backwards; else orders are made by list scheduling, not 1F1B."""


def advise(steps: Sequence[RunStep], *, blocks_per_stage: int, annealing: Annealing | None = None) -> Advice:
    """For the step of median duration; ValueError if the stages of pipelines differ.

    `annealing`: of other cuts, where microbatches differ.
    """
    step = sorted(steps, key=lambda each: each.measured_ns)[(len(steps) - 1) // 2]
    busy = {replica: sum(a.duration_ns for a in row) for replica, row in step.actions.items()}
    replica = max(busy, key=lambda each: busy[each])
    is_alike = all(_is_alike(spans) for spans in _spans(step).values())
    annealing = None if is_alike else annealing
    return Advice(
        measured_ns=step.measured_ns,
        replayed_ns=replay_ns(step),
        busiest_stage=_heaviest_stage(step, replica),
        busy=busy[replica] / step.measured_ns,
        slow=tuple(sorted(_slow(steps, step), key=lambda each: -each.effect_ns)),
        remedies=tuple(_remedies(steps, step, blocks_per_stage=blocks_per_stage, annealing=annealing)),
        is_alike=is_alike,
        num_pipelines=len({pipeline for pipeline, _ in step.actions}),
        num_stages=len({stage for _, stage in step.of_stages()}),
        is_plain=step.is_plain,
    )


def _heaviest_stage(step: RunStep, replica: ReplicaKey) -> int:
    load: dict[int, int] = {}
    for action in step.actions[replica]:
        load[action.stage] = load.get(action.stage, 0) + action.duration_ns
    return max(load, key=lambda stage: load[stage])


def _spans(step: RunStep) -> dict[tuple[int, str], list[int]]:
    """Durations by stage and kind."""
    found: dict[tuple[int, str], list[int]] = {}
    for _, action in step.keyed():
        found.setdefault((action.stage, action.kind), []).append(action.duration_ns)
    return found


def _is_alike(spans: Sequence[int]) -> bool:
    if len(spans) < 2:
        return True
    low, middle, high = statistics.quantiles(spans, n=4)
    return high - low <= _MOST_ALIKE * middle


def _slow(steps: Sequence[RunStep], step: RunStep) -> Iterator[Slow]:
    """Stages against the other stages, devices against the same stage of other pipelines, links against all links.

    Over all steps, so that a pipeline that had long microbatches once is not called slow.
    """
    before = replay_ns(step)
    numbers = {pipeline for pipeline, _ in step.actions}
    load: dict[int, float] = defaultdict(float)
    for one in steps:
        for key, action in one.keyed():
            load[action.stage] += action.duration_ns / len(numbers) if key[0] in numbers else 0
    for stage in sorted(load):
        peers = [load[other] for other in load if other != stage]
        if peers and load[stage] > NOTABLE * statistics.median(peers):
            keys = [key for key, _ in step.keyed() if key[1] == stage]
            yield _effect(step, f"stage {stage}", factor=load[stage] / statistics.median(peers), keys=keys)
    for replica, by in device_factors(steps, step).items():
        if len(numbers) >= FEWEST_PEERS and by > 1:
            held = sorted({action.stage for action in step.actions[replica]})
            name = f"device of stage{'s' if held[1:] else ''} {', '.join(map(str, held))} in pipeline {replica[0]}"
            keys = [key for key, _ in step.keyed() if key[0] == replica[0] and key[1] in held]
            found = _effect(step, name, factor=float(by), keys=keys)
            if found.effect_ns * _LEAST_EFFECT > before:
                yield found
    yield from _slow_links(steps, step, before=before)


def _effect(step: RunStep, what: str, *, factor: float, keys: Collection[Key]) -> Slow:
    wanted = set(keys)
    durations = {key: round(action.duration_ns / factor) for key, action in step.keyed() if key in wanted}
    return Slow(what=what, factor=factor, effect_ns=replay_ns(step) - replay_ns(step, durations_ns=durations))


def _slow_links(steps: Sequence[RunStep], step: RunStep, *, before: int) -> Iterator[Slow]:
    found: dict[tuple[int, int, str], list[int]] = {}
    for each in steps:
        for (pipeline, sender, direction, _), lag in each.transfers_ns.items():
            found.setdefault((pipeline, sender, direction), []).append(lag)
    middle = {link: statistics.median(lags) for link, lags in found.items()}
    for link, typical in middle.items():
        same = [other for key, other in middle.items() if key != link]
        peers = statistics.median(same) if same else typical
        if peers and typical > NOTABLE * peers:
            other = {key: round(v * peers / typical) if key[:3] == link else v for key, v in step.transfers_ns.items()}
            effect = before - replay_ns(replace(step, transfers_ns=other))
            if effect * _LEAST_EFFECT > before:
                name = (
                    f"link from stage {link[1]} in pipeline {link[0]} ({'forward' if link[2] == 'F' else 'backward'})"
                )
                yield Slow(what=name, factor=typical / peers, effect_ns=effect)


def _remedies(
    steps: Sequence[RunStep], step: RunStep, *, blocks_per_stage: int, annealing: Annealing | None
) -> Iterator[Remedy]:
    if not step.is_plain:
        yield from advise_chunks(steps, step, blocks_per_stage=blocks_per_stage)
        return
    transfer_ns = transfer_of(step)
    assignments = [tuple(each.values()) for each in durations_of(step).values()]
    each = [balance_durations(assignment, 1, transfer_ns=transfer_ns) for assignment in assignments]
    yield Remedy(
        what="another order within every pipeline (1F1B)",
        makespan_ns=min(replay_ns(step), max(one.largest_ns for one in each)),
        lower_bound_ns=max(bound_dealings(assignment, 1) for assignment in assignments),
    )
    anew, _ = rebalance(step)
    everything = [one for assignment in assignments for one in assignment]
    yield Remedy(
        what="whole microbatches rebalanced (1F1B)",
        makespan_ns=replay_ns(anew),
        lower_bound_ns=bound_dealings(everything, len(assignments), transfer_ns=transfer_ns),
    )
    shape = find_shape(step)
    placed = None if shape is None else place_anew(steps, step, shape=shape, order=order_1f1b)
    if placed is not None:
        yield describe_placing(placed, orders="1F1B")
    other = cut_anew(step, blocks_per_stage=blocks_per_stage, annealing=annealing)
    if other is not None:
        yield Remedy(
            what=f"divided again: {other.kept} of {blocks_per_stage} blocks left on the last stage, and rebalanced "
            f"(1F1B, one stage per device; assumes that a stage is {blocks_per_stage} equal blocks; what the last "
            "takes longer stays there; the others share the rest evenly)",
            makespan_ns=replay_ns(other.step),
            lower_bound_ns=other.lower_bound_ns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OtherCut:
    """A step with another number of blocks on its last stage, dealt anew."""

    kept: int
    """Blocks left on the last stage."""
    step: RunStep
    lower_bound_ns: int
    """No cut of this kind, dealt in whatever way, is faster under 1F1B."""


def cut_anew(step: RunStep, *, blocks_per_stage: int, annealing: Annealing | None = None) -> _OtherCut | None:
    """The best number of blocks to leave on the last stage, if it is another than now.

    Every number has its bound; they are dealt in that order until the next bound reaches the best.
    """
    assignments = durations_of(step)
    microbatches = [one for assignment in assignments.values() for one in assignment.values()]
    num_stages, transfer_ns = len(microbatches[0].forward_ns), transfer_of(step)
    if num_stages < 2:
        return None
    cuts = {
        kept: [recut(one, kept=kept, blocks_per_stage=blocks_per_stage) for one in microbatches]
        for kept in range(num_stages * blocks_per_stage + 1)
    }
    bounds = {
        kept: bound_dealings(cut, len(assignments), transfer_ns=transfer_ns, is_1f1b=True) for kept, cut in cuts.items()
    }
    found: dict[int, RunStep] = {}
    for kept in sorted(cuts, key=lambda each: bounds[each]):
        if not found or bounds[kept] < min(map(replay_ns, found.values())):
            dealing = balance_durations(cuts[kept], len(assignments), transfer_ns=transfer_ns, annealing=annealing)
            found[kept] = as_step(step, dealing, microbatches=cuts[kept], transfer_ns=transfer_ns)
    kept = min(found, key=lambda each: replay_ns(found[each]))
    if kept == blocks_per_stage:
        return None
    return _OtherCut(kept=kept, step=found[kept], lower_bound_ns=min(bounds.values()))


def make_block_workload(steps: Sequence[RunStep], *, blocks_per_stage: int, name: str) -> Workload:
    """One pipeline as a chain of equal blocks and what the last stage takes beyond them: means over all steps.

    The assumption about layers that a trace does not show; the provenance states it.
    """
    assignments = [tuple(each.values()) for step in steps for each in durations_of(step).values()]
    count = len(assignments[0][0].forward_ns)
    means = [
        [
            statistics.fmean(getattr(one, field)[stage] for assignment in assignments for one in assignment)
            for stage in range(count)
        ]
        for field in ("forward_ns", "backward_ns")
    ]
    block = [statistics.fmean(row[:-1] or row) / blocks_per_stage for row in means]
    head = [max(0.0, row[-1] - size * blocks_per_stage) for row, size in zip(means, block, strict=True)]
    names = [f"block{number}" for number in range(count * blocks_per_stage)]
    layers = [_layer(each, block) for each in names] + ([_layer("head", head)] if any(head) else [])
    lag = round(statistics.fmean(transfer_of(step) for step in steps))
    devices = [f"device{place}" for place in range(len({place for _, place in steps[0].actions}))]
    return Workload(
        profile=ModelProfile(
            name=name,
            layers=tuple(layers),
            edges=tuple(Edge(producer=a.name, consumer=b.name, bytes=0) for a, b in pairwise(layers)),
            provenance=f"From a trace, assuming that each of its {count} stages is {blocks_per_stage} equal blocks and "
            "that all that the last takes longer is one layer (head and loss). Bytes and memory unknown.",
        ),
        cluster=Cluster(
            name=name,
            devices=tuple(Device(name=each, type="traced", memory_bytes=MAX_BYTES) for each in devices),
            links=tuple(
                Link(a=a, b=b, bandwidth_bytes_per_s=10**12, latency_ns=lag)
                for i, a in enumerate(devices)
                for b in devices[i + 1 :]
            ),
        ),
        num_microbatches=len(assignments[0]),
        options={"split_backward": False},
    )


def _layer(name: str, times: Sequence[float]) -> Layer:
    forward, backward = times
    cost = LayerCost(device_type="traced", forward_ns=round(forward), input_grad_ns=round(backward), weight_grad_ns=0)
    return Layer(name=name, costs=(cost,))
