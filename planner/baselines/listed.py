"""What others would do with microbatches that differ: methods for equal ones, and whole ones dealt in turn."""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from planner.actions import Action
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.partitions import smallest_largest_stage
from planner.baselines.registry import Baseline, make_baselines
from planner.clock import HasTime, always
from planner.dealing import pipeline_actions
from planner.layout.costs import CostModel
from planner.plan import NO_TIME, Plan, Stage
from planner.problem import Problem


def usual_size(problem: Problem) -> int:
    """The size nearest to the mean that replicas can cut as they can cut all that are listed."""
    listed = problem.microbatches or ()
    unit = gcd(*listed)
    mean = sum(listed) / len(listed)
    return min(max(unit, round(mean / unit) * unit), max(listed))


def is_cut_as_placed(problem: Problem) -> bool:
    """Whether the replicas of a given placement can cut every microbatch; else they are dealt whole ones."""
    unit = gcd(*(problem.microbatches or (1,)))
    return all(unit % len(groups) == 0 for groups in problem.options.placement or ())


def usual_problem(problem: Problem) -> Problem:
    """The question as who takes all microbatches for equal sees it; replicas cut what they can cut of every size."""
    unit = gcd(*(problem.microbatches or (1,)))
    at_mean = problem.at_size(usual_size(problem))
    limit = at_mean.replica_limit if unit > 1 else 1
    return replace(at_mean, options=replace(problem.options, max_replicas=limit))


def listed_baselines(problem: Problem, costs: CostModel, *, has_time: HasTime = always) -> Iterator[Baseline]:
    """Every method as if all microbatches were of the mean size, then 1F1B on pipelines that are dealt whole ones.

    The former run microbatches in the order listed, and their replicas cut each of them.
    """
    if is_cut_as_placed(problem):
        usual = usual_problem(problem)
        for baseline in make_baselines(usual, CostModel(usual), has_time=has_time):
            yield baseline if baseline.plan is None else _played_anew(problem, costs, baseline=baseline)
    for pipelines in range(2, min(problem.replica_limit, problem.num_microbatches) + 1):
        if len(problem.cluster.devices) % pipelines == 0 and problem.options.placement is None:
            yield from _balanced(problem, costs, pipelines=pipelines, has_time=has_time)


def _played_anew(problem: Problem, costs: CostModel, *, baseline: Baseline) -> Baseline:
    """The same stages and orders for the microbatches that are listed."""
    assert baseline.plan is not None
    for stage in baseline.plan.stages:
        count = len(stage.replicas)
        for size in problem.sizes:
            if size % count:
                note = f"cuts microbatches over {count} replicas, which one of size {size} does not allow"
                return replace(baseline, plan=None, note=note)
            try:
                costs.at(size).stage_cost(stage, 0)
            except ValueError as reason:
                return replace(baseline, plan=None, note=str(reason)[:120])
    return replace(baseline, plan=replace(baseline.plan, problem=problem.reference()))


def _balanced(problem: Problem, costs: CostModel, *, pipelines: int, has_time: HasTime) -> Iterator[Baseline]:
    """1F1B on so many pipelines, dealt in turn, and longest first onto the least loaded."""
    names = [device.name for device in problem.cluster.devices]
    depth = min(len(names) // pipelines, len(problem.profile.layers))
    blocks = [names[k * (len(names) // pipelines) :][:depth] for k in range(pipelines)]
    listed = problem.microbatches or ()
    round_robin = [list(range(k, len(listed), pipelines)) for k in range(pipelines)]
    assignments: list[list[int]] = [[] for _ in range(pipelines)]
    for number in sorted(range(len(listed)), key=lambda m: -listed[m]):
        min(assignments, key=lambda assignment: sum(listed[m] for m in assignment)).append(number)
    for name, balanced in (("dealt in turn", round_robin), ("longest first", assignments)):
        title = f"1F1B x {pipelines}, {name}"
        if not has_time():
            yield Baseline(name=title, plan=None, note=NO_TIME)
            continue
        cut = problem.options.partition
        try:
            cut = cut or smallest_largest_stage(costs.at(usual_size(problem)), blocks[0])
        except DoesNotApplyError as reason:
            yield Baseline(name=title, plan=None, note=str(reason))
            continue
        if len(cut) > len(blocks[0]):
            yield Baseline(name=title, plan=None, note=f"has {len(blocks[0])} devices for {len(cut)} stages")
            continue
        yield Baseline(name=title, plan=_one_f_one_b(problem, cut, blocks=blocks, assignments=balanced))


def _one_f_one_b(
    problem: Problem, cut: tuple[tuple[str, ...], ...], *, blocks: list[list[str]], assignments: list[list[int]]
) -> Plan:
    """Stage s on device s of every block, each of which plays its assignment in 1F1B."""
    shard, *_ = problem.options.shards(len(blocks))
    stages = tuple(
        Stage(layers=layers, replicas=tuple((block[s],) for block in blocks), shard=shard)
        for s, layers in enumerate(cut)
    )
    backward = ["B" if problem.profile.trains(layers) else "I" for layers in cut]
    device_orders: dict[str, list[Action]] = {}
    for block, assignment in zip(blocks, assignments, strict=True):
        for stage, place, is_forward in pipeline_actions(len(cut), len(assignment)):
            kind = "F" if is_forward else backward[stage]
            device_orders.setdefault(block[stage], []).append(Action(kind, stage, assignment[place]))  # type: ignore[arg-type]
    schedule = {device: tuple(device_order) for device, device_order in device_orders.items()}
    return Plan(
        problem=problem.reference(),
        stages=stages,
        schedule=schedule,
        dealing=tuple(tuple(assignment) for assignment in assignments),
    )
