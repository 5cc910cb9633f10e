"""First plans on clusters of many like devices: pipelines of equally replicated stages, class by class."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from planner.baselines.partitions import crossing_bytes
from planner.clock import HasTime, while_time
from planner.layout.costs import CostModel, LayerWork
from planner.layout.device_groups import open_widths
from planner.lowering import make_candidate_arrays, modes_of
from planner.plan import DeviceGroup, Stage
from planner.planning.search_state import SEED_SHARE, SearchState
from planner.planning.starts.conversions import rate, stages_of
from planner.planning.starts.first_starts import add_seeds, propose_best_seed
from planner.problem import Problem
from profiles.cluster import Device
from profiles.model_profile import LayerCost
from solver_models.instance import Integers
from solver_models.local_search.search import STANDARD_POLICY_PARAMS, Candidate, Searcher
from solver_models.precompile import FIRST
from solver_models.search_params import KindCutParams
from solver_models.starts.device_class_cuts import MOST_STAGES, WORSE, Floats, KindCut, StageKinds, kind_cuts
from solver_models.starts.device_class_fits import kind_fits
from solver_models.starts.large_construction import POLICY_PARAMS
from solver_models.starts.link_spread import spread_groups

_PLAYS = 3
"""Candidates that are played, of those with the least estimates."""
_PLAYS_A_STEP = 8
"""Those that are played of the neighbours of the best one."""
_IMPROVEMENT_SHARE = 0.1
"""Part of the time left that they may take."""
_SPREAD_STEPS = 100_000
"""Exchanges of devices tried so that links share the traffic."""
_MOST_KEPT = 64
"""Candidates that devices are given to, of those with the least estimates."""
_KIND_FIT_LEAST_DEVICES = 16
"""Types of like speed form a class until it has as many."""
_KIND_CUT_LEAST_DEVICES = 32
"""Clusters with fewer devices have none."""
_CLASS_UNITS = 16
"""Units that the devices of a class are counted in, at most."""
_MOST_REPLICA_COUNTS = 5
"""Numbers of replicas per class and width, the largest ones."""

CLASS_PIPELINES = "class pipelines"
"""What they are called among the improvers."""

Classes = dict[str, list[Device]]
"""Devices by the name of their class."""

MOST_CELLS = 10_000_000
"""Entries of all tables, at most, for memory: four classes of 128 devices and 100 layers would have 1.2 billion."""


def lay_out_classes(run: SearchState, *, known: float) -> None:
    """Note the pipelines of a run's problem, unless that was done; `known` as for `class_pipelines`."""
    if run.pipelines is None:
        run.pipelines = []
        if not run.fits_stages and run.params.has(CLASS_PIPELINES) and may_have_classes(run.problem):
            with run.step_of(CLASS_PIPELINES):
                run.pipelines = class_pipelines(run.problem, run.costs, known=known, params=run.params.kind_cut)


def begin_with_classes(run: SearchState) -> None:
    """Play the best of the pipelines, unless a plan of another run, or a first candidate, is far better than them all.

    Once the best is proposed, those a step from what was played, and so on. A second call does nothing.
    """
    known = min([seed.objective for seed in run.seeds if seed.is_feasible], default=math.inf)
    known = known if run.rival_ns is None else min(known, run.rival_ns)
    lay_out_classes(run, known=known)
    most, run.pipelines, found = WORSE * known, [], run.pipelines or []
    promising = [stages for estimate, stages in found if estimate <= most][:_PLAYS]
    if promising:
        with run.step_of(CLASS_PIPELINES):
            add_seeds(run, _play(run, promising), source=CLASS_PIPELINES)
        propose_best_seed(run)
        has_time, starts = run.time_until(_IMPROVEMENT_SHARE), run.seeds[: -_PLAYS - 1 : -1]
        with run.step_of(CLASS_PIPELINES):
            for start in (each for each in starts if each.is_feasible and each.objective <= most):
                add_seeds(run, _improve(run, start, has_time=has_time), source=CLASS_PIPELINES)


def _play(run: SearchState, promising: list[tuple[Stage, ...]]) -> list[Candidate]:
    run.make_ready(*FIRST, "large")
    searcher = Searcher(run.instance, params=run.params)
    rated, policies = list[Candidate](), _policies(run)
    has_time = run.time_until(SEED_SHARE)
    for stages in promising:
        if rated and not has_time():
            break
        rated.append(rate(run.problem, searcher, stages=_spread(run, stages), policies=policies))
        if run.is_large:  # a play takes long: the others get the policy that was best for the first
            policies = (rated[0].policy_params,)
    return [candidate for candidate in rated if candidate.is_feasible]


def _policies(run: SearchState) -> Sequence[Integers]:
    return POLICY_PARAMS if run.is_large else STANDARD_POLICY_PARAMS


def _improve(run: SearchState, best: Candidate, *, has_time: HasTime) -> Iterator[Candidate]:
    """Better and better pipelines, each a step from the last; of all steps those with the least bounds are played."""
    problem, classes, seen = run.problem, _classes(run.problem), set[KindCut]()
    searcher, policies = Searcher(run.instance, params=run.params), _policies(run)
    kinds = list(_kinds(problem, classes))
    cut = _cut_of(problem, kinds=kinds, stages=stages_of(problem, best))
    while cut is not None:
        bounded, near, cut = list[tuple[int, int, KindCut, tuple[Stage, ...]]](), cut.moves(len(kinds)), None
        for each in (each for each in near if each not in seen and has_time()):
            seen.add(each)
            if stages := _lay_out(problem, kinds, classes=classes, cut=each):
                bound = searcher.lower_bound(*make_candidate_arrays(problem, stages), modes=modes_of(stages))
                if bound is not None and bound < best.objective:
                    bounded.append((bound, len(bounded), each, stages))
        for _, _, each, stages in while_time(sorted(bounded)[:_PLAYS_A_STEP], has_time=has_time):
            played = rate(problem, searcher, stages=_spread(run, stages), policies=policies)
            if played.sort_key < best.sort_key:
                best, cut = played, each
        if cut is not None:
            yield best


def _spread(run: SearchState, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Stages of single devices on others of the same types, so that links share the traffic."""
    if any(len(group) != 1 for stage in stages for group in stage.replicas):
        return stages
    stage_of, groups = make_candidate_arrays(run.problem, stages)
    moved = spread_groups(run.instance, stage_of, groups=groups, steps=_SPREAD_STEPS)
    names = [device.name for device in run.problem.cluster.devices]
    found = (tuple((names[device],) for device in group) for group in moved)
    return tuple(replace(stage, replicas=replicas) for stage, replicas in zip(stages, found, strict=True))


def may_have_classes(problem: Problem, *, least_devices: int = _KIND_CUT_LEAST_DEVICES) -> bool:
    """Whether there are many devices whose stages may have different numbers of replicas, and a chain to cut freely."""
    options = problem.options
    is_free = options.partition is None and not options.pinned and not options.deadline_ns
    return (
        is_free
        and len(problem.cluster.devices) >= least_devices
        and options.max_replicas != 1
        and options.uneven_replication
        and options.idle_devices
        and options.shard_optimizer != "always"
        and options.objective == "makespan"
        and problem.profile.is_chain
    )


def class_pipelines(
    problem: Problem, costs: CostModel, *, known: float, params: KindCutParams = KindCutParams()
) -> list[tuple[float, tuple[Stage, ...]]]:
    """Estimated nanoseconds and stages of different pipelines, the least estimate first; fewer if far above `known`."""
    classes = _classes(problem)
    has_tables = _num_cells(problem, classes, limits=params.limits) <= MOST_CELLS
    if not has_tables:
        classes = _bands(problem, classes, least_devices=_KIND_FIT_LEAST_DEVICES)
    kinds = list(_kinds(problem, classes))
    if not kinds:
        return []
    units = {name: _unit(len(devices)) if has_tables else 1 for name, devices in classes.items()}
    table = _tabulate(problem, costs, kinds=kinds, classes=classes, units=units)
    count, overlap = problem.num_microbatches, problem.cluster.overlap
    sizes = tuple(len(devices) // units[name] for name, devices in classes.items())
    if has_tables:
        cuts = kind_cuts(table, class_units=sizes, num_microbatches=count, overlap=overlap, known=known, params=params)
    else:
        cuts = kind_fits(table, class_devices=sizes, num_microbatches=count, overlap=overlap, known=known)
    kept = cuts[:_MOST_KEPT]
    return [(cut.estimate, stages) for cut in kept if (stages := _lay_out(problem, kinds, classes=classes, cut=cut))]


def _num_cells(problem: Problem, classes: Classes, *, limits: int) -> int:
    """Entries of all tables of the dynamic programme."""
    sizes = [len(devices) for devices in classes.values()]
    units = math.prod(size // _unit(size) + 1 for size in sizes)
    return limits * (len(problem.profile.layers) + 1) * (MOST_STAGES + 1) * units


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A way to run a stage."""

    device_class: str
    width: int
    replicas: int

    @property
    def num_devices(self) -> int:
        return self.width * self.replicas


def _classes(problem: Problem) -> Classes:
    """The devices of every type, as listed."""
    return {
        device_type: [device for device in problem.cluster.devices if device.type == device_type]
        for device_type in problem.cluster.device_types
    }


def _bands(problem: Problem, classes: Classes, *, least_devices: int) -> Classes:
    """Types of like speed as one class, so that replicas need not be all of one type; single devices only."""
    if open_widths(problem):
        return classes
    bands: Classes = {}
    last = ""
    for name in sorted(classes, key=lambda each: _slowness(problem, each)):
        if not last or len(bands[last]) >= least_devices:
            last = name
        bands.setdefault(last, []).extend(classes[name])
    return bands


def _slowness(problem: Problem, device_type: str) -> int:
    """What all layers take on single devices of a type, each at the size that was measured to take longest."""
    return sum(
        max(
            (
                cost.forward_ns + cost.input_grad_ns + cost.weight_grad_ns
                for cost in layer.costs
                if _is_on(cost, device_type)
            ),
            default=0,
        )
        for layer in problem.profile.layers
    )


def _is_on(cost: LayerCost, device_type: str, *, width: int = 1) -> bool:
    return (cost.device_type, cost.width) == (device_type, width)


def _unit(count: int) -> int:
    """The least power of two of which a class has few enough."""
    return 1 << max(0, math.ceil(math.log2(count / _CLASS_UNITS)))


def _kinds(problem: Problem, classes: Classes) -> Iterator[_Kind]:
    """For every class and width the largest numbers of replicas whose shares were measured, or all if none was."""
    for name, devices in classes.items():
        for width in (1, *open_widths(problem)):
            most = min(len(devices) // width, problem.options.max_replicas or len(devices))
            found = [_replica_counts(problem, each, width=width, most=most) for each in _types(devices)]
            counts = [count for count in found[0] if all(count in others for others in found[1:])]
            for replicas in counts[-_MOST_REPLICA_COUNTS:]:
                yield _Kind(device_class=name, width=width, replicas=replicas)


def _types(devices: list[Device]) -> tuple[str, ...]:
    """The types among devices."""
    return tuple(dict.fromkeys(device.type for device in devices))


def _replica_counts(problem: Problem, device_type: str, *, width: int, most: int) -> list[int]:
    """Ascending, up to `most`; none where a layer was not measured at that type and width."""
    profile = problem.profile
    own = profile.microbatch_size or 1
    sizes = [
        [cost.microbatch_size or own for cost in layer.costs if _is_on(cost, device_type, width=width)]
        for layer in profile.layers
    ]
    if not all(sizes):
        return []
    size = profile.microbatch_size
    if size is None:
        return [1 << power for power in range(most.bit_length())]
    counts = [count for count in range(1, most + 1) if size % count == 0]
    low, high = max(map(min, sizes)), min(map(max, sizes))
    measured = [count for count in counts if low <= size // count <= high]
    return measured or (counts if profile.scales_linearly else [])


def _tabulate(
    problem: Problem, costs: CostModel, *, kinds: list[_Kind], classes: Classes, units: dict[str, int]
) -> StageKinds:
    numbers = {name: number for number, name in enumerate(classes)}
    rows = [_row(problem, costs, kind=kind, devices=classes[kind.device_class]) for kind in kinds]
    load, crossing, state, stash, sync, sync_least = zip(*rows, strict=True)
    return StageKinds(
        device_class=np.array([numbers[kind.device_class] for kind in kinds]),
        units=np.array([-(-kind.num_devices // units[kind.device_class]) for kind in kinds]),
        load=np.array(load),
        crossing=np.array(crossing),
        state=np.array(state),
        stash=np.array(stash),
        room=np.array([min(each.usable_bytes for each in classes[kind.device_class]) for kind in kinds], np.float64),
        sync=np.array(sync),
        sync_least=np.array(sync_least),
    )


def _row(
    problem: Problem, costs: CostModel, *, kind: _Kind, devices: list[Device]
) -> tuple[Floats, Floats, Floats, Floats, Floats, float]:
    """Prefix sums of times, messages, state, stash and synchronisation of a kind, and its least synchronisation."""
    profile, is_split, replicas = problem.profile, problem.options.split_backward, kind.replicas
    layers, types = [profile.by_name[name] for name in profile.topological_order], _types(devices)
    times, states, stashes, gradients = [], [], [], []
    for layer in layers:
        works = [costs.layer_work(layer.name, each, width=kind.width, replicas=replicas) for each in types]
        held = layer.bytes_at(kind.width)
        assert held is not None
        times.append(max(_device_ns(work, is_split=is_split) for work in works) / replicas)
        states.append(float(costs.resident(layer.name, kind.width).state))
        stashes.append(held.stash_bytes / replicas)
        own = layer.synchronised_bytes_at(kind.width)
        gradients.append(layer.synchronised_bytes / kind.width if own is None else float(own))
    ends = (devices[0].name, devices[-1].name)
    latency, per_byte = _link(problem, ends, num_bytes=int(sum(gradients)))
    messages = crossing_bytes(profile) / replicas * per_byte + latency
    messages[0] = messages[-1] = 0
    ring = 2 * (replicas - 1)
    return (
        _prefix(times),
        2 * messages,
        _prefix(states),
        _prefix(stashes),
        _prefix([ring / replicas * size * per_byte for size in gradients]),
        ring * latency,
    )


def _device_ns(work: LayerWork | None, *, is_split: bool) -> int:
    """What F and the backward pass of a layer take, over all replicas."""
    assert work is not None
    return work.forward_ns + (work.input_grad_ns + work.weight_grad_ns if is_split else work.backward_ns)


def _link(problem: Problem, ends: tuple[str, str], *, num_bytes: int) -> tuple[float, float]:
    """Latency and nanoseconds per byte between the ends of a class."""
    if ends[0] == ends[1]:
        return 0.0, 0.0
    route = problem.cluster.route(*ends, num_bytes=num_bytes)
    return float(route.latency_ns), 1e9 / route.bandwidth_bytes_per_s


def _prefix(values: list[float]) -> Floats:
    return np.concatenate(([0.0], np.cumsum(values)))


def _lay_out(problem: Problem, kinds: list[_Kind], *, classes: Classes, cut: KindCut) -> tuple[Stage, ...]:
    """Stages on consecutive devices, wide ones first so that groups stay on their hosts; none where these run out."""
    names = problem.profile.topological_order
    free = {name: _by_host(devices) for name, devices in classes.items()}
    replicas: dict[int, tuple[DeviceGroup, ...]] = {}
    order = sorted(range(len(cut.kinds)), key=lambda stage: (-kinds[cut.kinds[stage]].width, stage))
    for stage in order:
        kind = kinds[cut.kinds[stage]]
        groups = _take(free[kind.device_class], kind)
        if groups is None:
            return ()
        replicas[stage] = groups
    return tuple(
        Stage(layers=names[start:end], replicas=replicas[stage])
        for stage, (start, end) in enumerate(pairwise(cut.bounds))
    )


def _by_host(devices: list[Device]) -> list[list[str]]:
    hosts: dict[str, list[str]] = {}
    for device in devices:
        hosts.setdefault(device.host or device.name, []).append(device.name)
    return list(hosts.values())


def _take(hosts: list[list[str]], kind: _Kind) -> tuple[DeviceGroup, ...] | None:
    """So many groups of neighbours on one host each, taken from what is free; None where there are too few."""
    taken: list[DeviceGroup] = []
    for host in hosts:
        while len(taken) < kind.replicas and len(host) >= kind.width:
            taken.append(tuple(host[: kind.width]))
            del host[: kind.width]
    return tuple(taken) if len(taken) == kind.replicas else None


def _cut_of(problem: Problem, *, kinds: list[_Kind], stages: Sequence[Stage]) -> KindCut | None:
    """Stages as a cut; None where some are of no kind, or on several types."""
    numbers = {(kind.device_class, kind.width, kind.replicas): number for number, kind in enumerate(kinds)}
    types = [{problem.cluster.by_name[name].type for group in stage.replicas for name in group} for stage in stages]
    shapes = [(len(stage.replicas[0]), len(stage.replicas)) for stage in stages]
    keys = [(" ".join(own), *shape) for own, shape in zip(types, shapes, strict=True)]
    bounds = accumulate((len(stage.layers) for stage in stages), initial=0)
    is_known = numbers.keys() >= {*keys}
    return KindCut(bounds=tuple(bounds), kinds=tuple(numbers[key] for key in keys)) if is_known else None
