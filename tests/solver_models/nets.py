"""Random problems that the kernels represent exactly, and what they see of one plan's stages."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from random import Random

import numpy as np

from planner.actions import KINDS, Action
from planner.layout.costs import CostModel
from planner.lowering import make_candidate_arrays, make_instance, make_plan_from_orders, modes_of
from planner.plan import Plan, Stage
from planner.problem import Options, PinnedLayer, Problem
from planner.simulation.simulate import Timeline, simulate
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import ModelProfile
from solver_models.instance import DeviceOrder, Instance, Integers
from solver_models.local_search.search import STANDARD_POLICY_PARAMS, Candidate, Searcher
from solver_models.simulation.evaluator import Net, assemble
from tests.strategies import (
    AMPLE,
    BANDWIDTHS,
    draws_bucket_views,
    draws_turns,
    draws_workspace,
    random_bucket,
    random_edges,
    random_layer,
    random_overheads,
    random_schedule,
    random_stages,
)

TYPES = ("fast", "slow")


def random_exact_problem(
    rng: Random, *, num_layers: int = 6, num_devices: int = 4, num_microbatches: int = 4, is_shared: bool = False
) -> Problem:
    """A problem whose routes do not depend on sizes, with edges in any order.

    Every two devices have a link of their own (for both directions, where it is not duplex); or, if `is_shared`,
    devices and a switch form a tree, so that routes share links.
    """
    size = rng.choice([1, 1, 2, 4, 6])
    layers = tuple(
        random_layer(rng, f"l{i}", types=TYPES, widths=(1,), size=size) for i in range(rng.randint(1, num_layers))
    )
    edges = list(random_edges(rng, [layer.name for layer in layers]))
    rng.shuffle(edges)
    return Problem(
        profile=ModelProfile(
            name="profile",
            layers=layers,
            edges=tuple(edges),
            microbatch_size=size,
            optimizer_ns=rng.choice([0, 0, 5]),
            stages_optimizer_ns=Random(f"stages of {size} {num_layers}").choice([0, 4]),
            action_overhead_ns=random_overheads(TYPES, like=layers),
            bucket_bytes=random_bucket(layers),
            gradient_as_bucket_view=draws_bucket_views(layers),
        ),
        cluster=random_exact_cluster(rng, rng.randint(1, num_devices), is_shared=is_shared),
        num_microbatches=rng.randint(1, num_microbatches),
        options=Options(
            split_backward=rng.random() < 0.8,
            max_stages_per_device=6,
            recompute=rng.random() < 0.5,
            receive_buffers=rng.randint(0, 2),
            objective=rng.choice(["makespan", "makespan", "span"]),
            keep_workspace=draws_workspace(layers),
        ),
    )


def random_exact_cluster(rng: Random, num_devices: int, *, is_shared: bool) -> Cluster:
    """Devices of two types with a complete graph of links, or with a tree of them through a switch."""
    devices = tuple(Device(name=f"d{i}", type=rng.choice(TYPES), memory_bytes=AMPLE) for i in range(num_devices))
    ends = [device.name for device in devices]
    pairs = list(combinations(ends, 2))
    if is_shared:
        ends.append("switch")
        rng.shuffle(ends)
        pairs = [(ends[rng.randrange(i)], ends[i]) for i in range(1, len(ends))]
    links = tuple(
        Link(
            a=a,
            b=b,
            bandwidth_bytes_per_s=rng.choice(BANDWIDTHS),
            latency_ns=rng.choice([0, 0, 1, 4]),
            duplex=rng.random() < 0.7,
        )
        for a, b in pairs
    )
    return Cluster(name="cluster", devices=devices, links=links, switches=("switch",) if is_shared else ())


def random_restrictions(rng: Random, *, may_recompute: bool = True, **sizes: int) -> Problem:
    """A problem with restrictions of every kind."""
    problem = random_exact_problem(rng, is_shared=rng.random() < 0.5, **sizes)
    pin = PinnedLayer(layer=rng.choice(problem.profile.layers).name, device=rng.choice(problem.cluster.devices).name)
    options = replace(
        problem.options,
        recompute=problem.options.recompute and may_recompute,
        max_stages_per_device=rng.randint(1, 3),
        max_replicas=rng.choice([None, 1, 2]),
        uneven_replication=rng.random() < 0.7,
        skip_edges=rng.random() < 0.7,
        idle_devices=rng.random() < 0.7,
        pinned=(pin,) if rng.random() < 0.3 else (),
    )
    return replace(problem, options=options)


def keeps_options(problem: Problem, stage_of: Sequence[int], *, groups: Sequence[Sequence[int]]) -> bool:
    """The rules of the options about stages and devices, read once more."""
    options, devices = problem.options, [device.name for device in problem.cluster.devices]
    stage = dict(zip(problem.profile.topological_order, map(int, stage_of), strict=True))
    types, costs = [device.type for device in problem.cluster.devices], CostModel(problem)
    held = [device for group in groups for device in group]
    return (
        all(len(group) in problem.allowed_replicas and len(set(group)) == len(group) for group in groups)
        and all(
            costs.layer_work(name, types[device], width=1, replicas=len(groups[number])) is not None
            for name, number in stage.items()
            for device in groups[number]
        )
        and (options.uneven_replication or len({len(group) for group in groups} - {1}) <= 1)
        and all(held.count(device) <= options.max_stages_per_device for device in held)
        and (options.idle_devices or set(held) == set(range(len(devices))))
        and (options.skip_edges or all(stage[e.consumer] - stage[e.producer] <= 1 for e in problem.profile.edges))
        and all(tuple(groups[stage[pin.layer]]) == (devices.index(pin.device),) for pin in options.pinned)
    )


def random_policy_params(rng: Random) -> Integers:
    """A list-scheduling policy of any kind."""
    policy_params = (
        rng.choice([0, 2, 4, 8]),
        rng.choice([0, 1, 2, 1 << 20]),
        rng.choice([0, 1, 3, 1 << 20]),
        rng.randrange(8),
    )
    return np.array(policy_params, dtype=np.int64)


def tighten(rng: Random, problem: Problem, timeline: Timeline) -> Problem:
    """Memory as a plan needs it, give or take a little, on some of the devices it uses."""
    sizes = {
        name: max(1, peak + rng.choice([-3, 0, 0, 2, 10]))
        for name, peak in timeline.peak_bytes.items()
        if rng.random() < 0.7
    }
    devices = tuple(replace(d, memory_bytes=sizes.get(d.name, d.memory_bytes)) for d in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


@dataclass(frozen=True)
class Case:
    """A problem, the stages of a plan for it, and both as the kernels see them."""

    problem: Problem
    stages: tuple[Stage, ...]

    @cached_property
    def costs(self) -> CostModel:
        return CostModel(self.problem)

    @cached_property
    def instance(self) -> Instance:
        return make_instance(self.problem, self.costs)

    @cached_property
    def searcher(self) -> Searcher:
        return Searcher(self.instance)

    @cached_property
    def net(self) -> Net:
        candidate = self.candidate()
        start, devices = flatten(candidate.groups)
        return assemble(self.searcher.layers, candidate.stage_of, start, devices, candidate.modes)

    def candidate(
        self, *, policy_params: Integers = STANDARD_POLICY_PARAMS[0], words: dict[int, DeviceOrder] | None = None
    ) -> Candidate:
        """These stages, with a policy or with words."""
        stage_of, groups = make_candidate_arrays(self.problem, self.stages)
        modes = modes_of(self.stages)
        return Candidate(
            stage_of=stage_of, groups=groups, modes=modes, policy_params=policy_params, objective=0, device_orders=words
        )

    def device_orders(self, schedule: Mapping[str, Sequence[Action]]) -> dict[int, DeviceOrder]:
        """A schedule with its microbatches taken in order, as the kernels take them."""
        index = {device.name: number for number, device in enumerate(self.problem.cluster.devices)}
        return {index[device]: in_order(word) for device, word in schedule.items()}

    def plan(self, words: dict[int, DeviceOrder]) -> Plan:
        """The plan with these orders."""
        return make_plan_from_orders(self.problem, self.stages, device_orders=words)

    def play(self, words: dict[int, DeviceOrder]) -> Timeline:
        """What the simulator makes of these orders."""
        return simulate(self.problem, self.plan(words), costs=self.costs)


def random_case(rng: Random, *, is_tight: bool = False, overlap: bool = True, **sizes: int) -> Case:
    """A problem with random stages; if `is_tight`, with about the memory that a random order of them needs."""
    problem = random_exact_problem(rng, is_shared=rng.random() < 0.5, **sizes)
    problem = replace(problem, cluster=replace(problem.cluster, overlap=overlap))
    if problem.options.recompute and draws_turns(problem.profile.layers):
        problem = replace(problem, options=replace(problem.options, recompute_in_turn=True))
    stages = random_stages(rng, problem)
    problem = with_occupancy(problem, Random(f"collectives of {stages}").choice([0, 0, 300, 1000]))
    if is_tight:
        schedule = random_schedule(rng, problem, stages=stages)
        plan = Plan(problem=problem.reference(), stages=stages, schedule=schedule)
        problem = tighten(rng, problem, simulate(problem, plan))
    return Case(problem, stages)


def with_occupancy(problem: Problem, thousandths: int) -> Problem:
    """The problem where reductions take so much of their devices from actions beside them."""
    return replace(problem, cluster=replace(problem.cluster, collective_occupancy=thousandths))


def flatten(groups: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    """Where the replicas of every stage begin, and the devices of all replicas."""
    start = np.cumsum([0, *(len(group) for group in groups)]).astype(np.int64)
    return start, np.array([device for group in groups for device in group], dtype=np.int64)


def in_order(word: Sequence[Action]) -> DeviceOrder:
    """The k-th F and the k-th I or B of a stage are given microbatch k, a W the oldest whose I has no W yet."""
    counts: dict[tuple[str, int], int] = {}
    waiting: dict[int, deque[int]] = {}
    result: DeviceOrder = []
    for kind, stage, _ in word:
        if kind == "W":
            microbatch = waiting[stage].popleft()
        else:
            way = "F" if kind == "F" else "I"
            microbatch = counts.get((way, stage), 0)
            counts[way, stage] = microbatch + 1
            if kind == "I":
                waiting.setdefault(stage, deque()).append(microbatch)
        result.append((KINDS.index(kind), stage, microbatch))
    return result


def is_ordered(instance: Instance, stage_of: Integers) -> bool:
    """Whether stages are numbered without gaps and never decrease along an edge."""
    numbers = set(stage_of.tolist())
    forward = all(stage_of[a] <= stage_of[b] for a, b in instance.layers.edges[:, :2].tolist())
    return forward and numbers == set(range(len(numbers)))
