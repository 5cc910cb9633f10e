"""Stages on ranks of devices that could gather weights, and first orders of them in the memory that is left then.

The joint search counts weights whole. Here a device has as much more memory as gathering saves it, so that the search's
own policies order stages as if their weights were in parts.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from planner.decisions.max_active_stages.plans import possible_ranks, with_gathered
from planner.layout.costs import CostModel
from planner.layout.stage_replicas import lay_out
from planner.lowering import make_instance
from planner.plan import Plan, Stage
from planner.planning.starts.conversions import plan_of, rate
from planner.problem import Problem
from solver_models.local_search.search import Searcher


def even_layouts(problem: Problem) -> Iterator[tuple[Stage, ...]]:
    """Layers in their order, cut evenly by time, dealt in a loop to ranks of equally many consecutive devices."""
    devices, options, names = problem.cluster.devices, problem.options, problem.profile.topological_order
    weight = {name: max(cost.forward_ns for cost in problem.profile.by_name[name].costs) for name in names}
    for width in (each for each in problem.allowed_replicas if each > 1 and len(devices) % each == 0):
        ranks = [tuple((d.name,) for d in devices[n : n + width]) for n in range(0, len(devices), width)]
        for chunks in range(1, options.max_stages_per_device + 1):
            count = chunks * len(ranks)
            if count <= len(names):
                parts = _cut(names, weight, count=count)
                yield tuple(
                    Stage(layers=part, replicas=ranks[n % len(ranks)], shard="optimizer")
                    for n, part in enumerate(parts)
                )


def _cut(names: tuple[str, ...], weight: dict[str, int], *, count: int) -> list[tuple[str, ...]]:
    """So many parts, none of them empty, each up to its share of the whole."""
    sums = [0, *accumulate(weight[name] for name in names)]
    borders = [0]
    for part in range(1, count):
        least, most = borders[-1] + 1, len(names) - (count - part)
        borders.append(min(range(least, most + 1), key=lambda place: abs(sums[place] * count - sums[-1] * part)))
    return [names[a:b] for a, b in zip(borders, [*borders[1:], len(names)], strict=True)]


def ordered_plans(problem: Problem, stages: tuple[Stage, ...], *, most: int) -> Iterator[Plan]:
    """The stages, gathered on all ranks that could, in the best order of a policy, for 1 ... `most` active stages."""
    sharded = tuple(replace(each, shard="optimizer") if len(each.replicas) > 1 else each for each in stages)
    devices = [device for stage in sharded for group in stage.replicas for device in group]
    bare = Plan(problem=problem.reference(), stages=sharded, schedule=dict.fromkeys(devices, ()))
    ranks = possible_ranks(bare)
    for active in range(1, min(most, max((len(rank.stages) for rank in ranks), default=0)) + 1):
        gathered = with_gathered(bare, ranks, max_active_stages=active)
        roomy = _with_room(problem, whole=bare, gathered=gathered)
        if roomy is None:
            continue
        searcher = Searcher(make_instance(roomy, CostModel(roomy)))
        candidate = rate(roomy, searcher, stages=sharded)
        if candidate.is_feasible:
            plan = replace(plan_of(roomy, searcher, candidate=candidate), problem=problem.reference())
            yield with_gathered(plan, ranks, max_active_stages=active)


def _with_room(problem: Problem, *, whole: Plan, gathered: Plan) -> Problem | None:
    """The problem on devices with as much more memory as gathering saves them; None if one has nothing left."""
    costs = CostModel(problem)
    more, less = (lay_out(plan, costs=costs).static_bytes for plan in (whole, gathered))
    devices = [
        replace(each, memory_bytes=each.memory_bytes + more.get(each.name, 0) - less.get(each.name, 0))
        for each in problem.cluster.devices
        if each.usable_bytes + more.get(each.name, 0) > less.get(each.name, 0)
    ]
    if len(devices) < len(problem.cluster.devices):
        return None
    options = replace(problem.options, max_active_stages=None)
    return replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)), options=options)
