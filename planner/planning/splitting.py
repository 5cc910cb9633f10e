"""Split placement where it pays: weight gradients leave the busiest device as long as the played makespan gets shorter.

Other than LayerPipe's free placement this counts what the transfers cost, since every step is played with them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.baselines.layer_pipe.plans import make_split_plan
from planner.costs import CostModel
from planner.plan import Plan, Share, Stage
from planner.simulate import Timeline
from planner.verify import verify

TARGETS = 2
"""So many devices, least busy first, are tried for a weight gradient."""


def one_by_one(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The same layers on the same devices, each layer a stage: so that each W can be placed on its own."""
    return tuple(replace(stage, layers=(name,)) for stage in stages for name in stage.layers)


def split_further(costs: CostModel, stages: Sequence[Stage], *, most_trials: int = 100) -> Plan:
    """The best valid plan found from `stages`, one device each, by moving whole W to other devices.

    Never longer than the first one, `make_split_plan` of the stages as they are; a plan with a better order of the same
    stages may be shorter than both. Raises ValueError if the first one is not valid (without the option
    `split_placement`, or beyond the memory).
    """
    best = tuple(stages)
    plan = make_split_plan(costs, best)
    timeline = _play(costs, plan)
    if timeline is None:
        raise ValueError("splitting: the plan to begin with is not valid; give options.split_placement, or more memory")
    trials = 0
    has_moved = True
    while has_moved and trials < most_trials:
        has_moved = False
        for candidate in _moves(costs, best, timeline=timeline):
            trials += 1
            tried = make_split_plan(costs, candidate)
            played = _play(costs, tried)
            if played is not None and played.makespan_ns < timeline.makespan_ns:
                best, plan, timeline, has_moved = candidate, tried, played, True
                break
            if trials >= most_trials:
                break
    return plan


def _play(costs: CostModel, plan: Plan) -> Timeline | None:
    """The timeline of a plan that breaks no rule."""
    verdict = verify(costs.problem, plan)
    return verdict.timeline if verdict.passed else None


def _moves(costs: CostModel, stages: tuple[Stage, ...], *, timeline: Timeline) -> Iterator[tuple[Stage, ...]]:
    """One W of the busiest devices elsewhere, most time per byte first; or a W that went elsewhere back home."""
    busy = dict.fromkeys((device.name for device in costs.problem.cluster.devices), 0)
    for device, word in timeline.actions.items():
        busy[device] = sum(timed.end_ns - timed.start_ns for timed in word)
    by_load = sorted(busy, key=lambda device: (busy[device], device))
    for source in by_load[: TARGETS - 1 if len(by_load) > TARGETS else 0 : -1]:
        own = [number for number, stage in enumerate(stages) if _weight_device(stage) == source]
        for number in sorted(own, key=lambda number: -_worth(costs, stages[number])):
            if not costs.stage_cost(stages[number], 0).has_weight_grad:
                continue
            owner = stages[number].replicas[0][0]
            for target in dict.fromkeys([*by_load[:TARGETS], owner]):
                if target != source and busy[target] < busy[source]:
                    shares = () if target == owner else (Share(group=(target,)),)
                    moved = replace(stages[number], weight_grad_replicas=shares)
                    yield (*stages[:number], moved, *stages[number + 1 :])


def _weight_device(stage: Stage) -> str:
    groups = stage.weight_grad_replicas
    return groups[0].group[0] if groups else stage.replicas[0][0]


def _worth(costs: CostModel, stage: Stage) -> float:
    """Nanoseconds of W per byte that would have to travel in an iteration."""
    cost = costs.stage_cost(stage, 0)
    travels = cost.weight_stash_bytes * costs.problem.num_microbatches + costs.gradient_bytes(stage)
    return cost.weight_grad_ns * costs.problem.num_microbatches / max(travels, 1)
